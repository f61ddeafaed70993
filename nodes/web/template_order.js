// The pack's templates in the order of their names: ComfyUI lists the files of a folder in no order.
import { app } from "../../scripts/app.js";

const FIRST = "01 Demo without downloads";

/** Sort the list of templates of this pack whenever the editor asks for all of them. */
export function init() {
  const { api } = app;
  const { getWorkflowTemplates } = api;
  if (!getWorkflowTemplates) return;
  /** @param {any[]} args */
  api.getWorkflowTemplates = async function (...args) {
    const templates = await getWorkflowTemplates.apply(this, args);
    for (const names of Object.values(templates)) {
      if (Array.isArray(names) && names.includes(FIRST)) names.sort();
    }
    return templates;
  };
}
