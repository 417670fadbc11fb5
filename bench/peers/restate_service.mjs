// Restate: a handler with two durable steps, served by its TypeScript SDK. Arguments: the folder of the packages, the port.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, port] = process.argv.slice(2);
const sdk = createRequire(`${packages}/package.json`).resolve("@restatedev/restate-sdk");
const restate = await import(pathToFileURL(sdk));

const agent = restate.service({
  name: "agent",
  handlers: {
    run: async (ctx, input) => {
      const first = await ctx.run("first", () => ({ text: input.first }));
      const second = await ctx.run("second", () => ({ text: input.second }));
      if (first.text !== input.first || second.text !== input.second) throw new restate.TerminalError("other texts");
      return "done";
    },
  },
});

await restate.serve({ services: [agent], port: Number(port) });
