// ---------------------------------------------------------------- the calculator

// As `calculate` of gpub.chat.calculator: one operation on two whole numbers, "?" for anything else.
const CALL = /^ *(-?[0-9]{1,100}) *([-+*/]) *(-?[0-9]{1,100}) *$/;

function calculate(expression) {
  const call = CALL.exec(expression);
  if (call === null) {
    return "?";
  }
  const a = BigInt(call[1]);
  const b = BigInt(call[3]);
  switch (call[2]) {
    case "+":
      return String(a + b);
    case "-":
      return String(a - b);
    case "*":
      return String(a * b);
    default:
      return b === 0n ? "?" : quotient(a, b);
  }
}

// With two decimals unless it comes out even, rounded half away from zero.
function quotient(a, b) {
  if (a % b === 0n) {
    return String(a / b);
  }
  const size = (number) => (number < 0n ? -number : number);
  const hundredths = (200n * size(a) + size(b)) / (2n * size(b));
  const sign = a < 0n !== b < 0n && hundredths > 0n ? "-" : "";
  const decimals = String(hundredths % 100n).padStart(2, "0");
  return `${sign}${hundredths / 100n}.${decimals}`;
}
