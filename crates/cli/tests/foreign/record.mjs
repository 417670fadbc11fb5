// Loaded before a program: appends the body of each request to its model to the file REQUESTS, one per line.
import { appendFileSync } from "node:fs";

const original = globalThis.fetch;
globalThis.fetch = (url, options) => {
  if (String(url).startsWith(process.env.MODEL_URL)) {
    appendFileSync(process.env.REQUESTS, `${options.body}\n`);
  }
  return original(url, options);
};
