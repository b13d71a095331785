// Vercel AI SDK: chat API and Responses API. People are named with `experimental_telemetry.metadata`. The script comes as JSON on stdin.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.HARNESS_NODE}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, stepCountIs, tool, jsonSchema } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { NodeTracerProvider, SimpleSpanProcessor } = await load("@opentelemetry/sdk-trace-node");
const { OTLPTraceExporter } = await load("@opentelemetry/exporter-trace-otlp-proto");

const script = JSON.parse(readFileSync(0, "utf8"));
const base = process.env.HARNESS_URL;
const provider = new NodeTracerProvider({
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter({ url: `${base}/v1/traces` }))],
});
provider.register();

const compatible = createOpenAICompatible({ name: "harness", baseURL: `${base}/v1`, apiKey: "unused", includeUsage: true });
const openai = createOpenAI({ baseURL: `${base}/v1`, apiKey: "unused" });

const tools = Object.fromEntries(
  Object.entries(script.tools).map(([name, [description, schema]]) => [
    name,
    tool({ description, inputSchema: jsonSchema(schema), execute: async (given) => resultOf(name, given) }),
  ]),
);

async function resultOf(name, given) {
  await provider.forceFlush();
  return script.calls.find((call) => call.name === name && JSON.stringify(call.arguments) === JSON.stringify(given)).result;
}

for (const model of [compatible(script.model), openai.responses(script.model)]) {
  for (const scene of script.scenes) {
    if (["json", "developer"].includes(scene.name)) continue;
    const content =
      scene.name === "image"
        ? [{ type: "text", text: scene.prompt }, { type: "image", image: script.pixels, mediaType: "image/png" }]
        : scene.prompt;
    const before =
      scene.name === "history"
        ? [{ role: "user", content: script.earlier[0] }, { role: "assistant", content: script.earlier[1] }]
        : [];
    const given = {
      model,
      system: script.system,
      messages: [...before, { role: "user", content }],
      maxRetries: 0,
      providerOptions: { openai: { store: false } },
      stopWhen: stepCountIs(3),
      tools: scene.calls.length ? tools : undefined,
      experimental_telemetry: {
        isEnabled: true,
        metadata: { userId: scene.user, sessionId: scene.session, consent: scene.consent },
      },
    };
    try {
      if (scene.name.endsWith("stream")) {
        const result = streamText(given);
        for await (const _ of result.textStream);
      } else {
        await generateText(given);
      }
    } catch (error) {
      if (!scene.fails) throw error;
    }
    await provider.forceFlush();
  }
}
await provider.shutdown();
