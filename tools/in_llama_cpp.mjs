// What llama.cpp itself makes of one GGUF file: the tokens of texts, and for prompts of ids the
// logits after the last one and the likeliest continuation. A job comes in as JSON, so does the
// answer. node-llama-cpp is looked for in the folder that is named.
//
//   node in_llama_cpp.mjs FOLDER < job.json > answer.json

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = join(process.argv[2], "node_modules", "node-llama-cpp");
const require = createRequire(join(folder, "package.json"));
const { version, main } = require("./package.json");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(join(folder, main)).href);

// The logits of every token after `ids`, by id.
async function logitsAfter(sequence, ids) {
  await sequence.clearHistory();
  const last = [ids.at(-1), { generateNext: { logits: true } }];
  const found = await sequence.controlledEvaluate([...ids.slice(0, -1), last]);
  const byId = [];
  for (const [id, logit] of found.at(-1).next.logits) {
    byId[id] = logit;
  }
  return byId;
}

// `n` tokens after `ids`, each the likeliest.
async function continued(sequence, ids, n) {
  await sequence.clearHistory();
  const written = [];
  for await (const id of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true })) {
    written.push(id);
    if (written.length === n) {
      break;
    }
  }
  return written;
}

const parts = [];
for await (const part of process.stdin) {
  parts.push(part);
}
const job = JSON.parse(Buffer.concat(parts).toString("utf8"));
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: job.model });
const answer = {
  version,
  release: llama.llamaCppRelease,
  tokens: job.texts.map((text) => [...model.tokenize(text)]),
  logits: [],
  greedy: [],
};
if (job.prompts.length > 0) {
  // everything in fp32, as in torch: by default llama.cpp keeps keys and values in fp16
  const context = await model.createContext({
    contextSize: job.window,
    threads: 1,
    flashAttention: false,
    experimentalKvCacheKeyType: "F32",
    experimentalKvCacheValueType: "F32",
  });
  const sequence = context.getSequence();
  for (const ids of job.prompts) {
    answer.logits.push(await logitsAfter(sequence, ids));
    answer.greedy.push(await continued(sequence, ids, job.n));
  }
  await context.dispose();
}
await model.dispose();
process.stdout.write(JSON.stringify(answer));
