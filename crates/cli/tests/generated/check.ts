// A program on the types that openapi-typescript generates from the document, against a real server.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.d.ts";

declare const process: { env: Record<string, string | undefined> };

type Event = components["schemas"]["Event"];
type Message = components["schemas"]["Message"];
type Run = components["schemas"]["Run"];

const client = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: process.env.SERVER_URL!,
  headers: { Authorization: `Bearer ${process.env.SERVER_TOKEN}` },
});

function check(holds: boolean, what: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(what));
}

const accepted = await client.POST("/v1/runs", {
  params: { header: { Prefer: "wait=20" } },
  body: { prompt: "say hello", session: { key: "typescript" } },
});
check(accepted.data !== undefined, accepted.error);
check(accepted.data.status === "succeeded" && accepted.data.finalText === "hello\n", accepted.data);

const path = { run: accepted.data.runId };
const run: Run | undefined = (await client.GET("/v1/runs/{run}", { params: { path } })).data;
check(run?.runId === path.run, run);

const listed = await client.GET("/v1/sessions/{session}/messages", { params: { path: { session: "typescript" } } });
const messages: Message[] = listed.data?.items ?? [];
const texts = messages.flatMap((message) => message.content.map((block) => (block.type === "text" ? block.text : "")));
check(texts.join("|") === "say hello|hello\n", messages);

const events: Event[] = (await client.GET("/v1/runs/{run}/events", { params: { path } })).data?.items ?? [];
check(events.at(-1)?.type === "run.succeeded", events);

const missing = await client.GET("/v1/runs/{run}", { params: { path: { run: `run_${"0".repeat(32)}` } } });
check(missing.error?.code === "not_found", missing.error);
