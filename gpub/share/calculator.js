// ---------------------------------------------------------------- the calculator

// As `calculate` of gpub.chat.calculator: one operation on two numbers, "?" for anything else.
const CALL =
  /^ *(-?[0-9]{1,100})(?:\.([0-9]{1,100}))? *([-+*/]) *(-?[0-9]{1,100})(?:\.([0-9]{1,100}))? *$/;

function calculate(expression) {
  const call = CALL.exec(expression);
  if (call === null) {
    return "?";
  }
  const [decimalsA, decimalsB] = [call[2] ?? "", call[5] ?? ""];
  const places = Math.max(decimalsA.length, decimalsB.length);
  const a = BigInt(call[1] + decimalsA.padEnd(places, "0"));
  const b = BigInt(call[4] + decimalsB.padEnd(places, "0"));
  switch (call[3]) {
    case "+":
      return withPoint(a + b, places);
    case "-":
      return withPoint(a - b, places);
    case "*":
      return withPoint(a * b, 2 * places);
    default:
      return b === 0n ? "?" : quotient(a, b);
  }
}

const absolute = (number) => (number < 0n ? -number : number);

// A number of so many decimals, without zeros at its end: 250 with two places is 2.5.
function withPoint(number, places) {
  if (places === 0) {
    return String(number);
  }
  const digits = String(absolute(number)).padStart(places + 1, "0");
  const text = `${digits.slice(0, -places)}.${digits.slice(-places)}`;
  const short = text.replace(/0+$/, "").replace(/\.$/, "");
  return number < 0n ? `-${short}` : short;
}

// Rounded to two decimals unless it comes out even, half away from zero.
function quotient(a, b) {
  if (a % b === 0n) {
    return String(a / b);
  }
  const hundredths = (200n * absolute(a) + absolute(b)) / (2n * absolute(b));
  return withPoint(a < 0n !== b < 0n ? -hundredths : hundredths, 2);
}
