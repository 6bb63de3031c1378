// Gives away what was spoken: a file to the disk, the command to the clipboard.

import { t } from "./words.js";

const byId = (id) => document.getElementById(id);

/** Has the browser save a file. */
export function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Copies the command that is shown, or selects it where the browser gives no clipboard. */
export async function copyCommand() {
  try {
    await navigator.clipboard.writeText(byId("curl").textContent);
    byId("copy-curl").textContent = t("copied");
  } catch {
    // Browsers open the clipboard on https and localhost only.
    getSelection().selectAllChildren(byId("curl"));
    byId("copy-curl").textContent = t("copyByHand");
  }
}
