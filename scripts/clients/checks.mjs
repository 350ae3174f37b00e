// How the Node.js programs of this folder say what holds: a line for each check.
import { isDeepStrictEqual, inspect } from "node:util";

export const url = process.env.SERVER_URL;
export const host = process.env.SERVER_HOST;
export const port = Number(process.env.SERVER_PORT);
export const password = process.env.SERVER_PASSWORD;

export function check(name, found, wanted = true) {
  if (isDeepStrictEqual(found, wanted)) {
    console.log(`ok ${name}`);
  } else {
    const words = inspect(found, { breakLength: Infinity });
    console.log(`not ok ${name}: ${words} and not ${inspect(wanted, { breakLength: Infinity })}`);
  }
}

export const range = (n) => [...Array(n).keys()];

// The value of a condition as soon as it is true, or the last one after that time.
export async function until(condition, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value || Date.now() > end) return value;
    await new Promise((done) => setTimeout(done, 20));
  }
}

// The message of the error that a promise ends with.
export async function errorOf(promise) {
  try {
    await promise;
  } catch (error) {
    return error.message;
  }
  return null;
}
