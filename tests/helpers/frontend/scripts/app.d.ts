// What the frontend gives to extensions. Its own types are in no package that fits all supported versions.
export const app: any;

declare global {
  const LiteGraph: { vueNodesMode?: boolean };
  interface Window {
    comfyAPI?: { utils?: { applyTextReplacements?: (app: unknown, text: string) => string } };
  }
}
