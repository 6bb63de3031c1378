/* Shows openapi.json: a section for each door, and for each address what it takes, what it answers, and a command. */

const DOCUMENT = "openapi.json";
const EXAMPLES = { model: "cosydit", input: "Hello.", text: "Hello.", voice: "default", response_format: "wav" };

const doors = document.querySelector(".doors");

show().catch((error) => {
  const notice = document.querySelector("[role=alert]");
  notice.textContent = `${DOCUMENT} can't be shown: ${error.message}. Reload the page.`;
  notice.hidden = false;
}).finally(() => doors.removeAttribute("aria-busy"));

async function show() {
  const answer = await fetch(DOCUMENT);
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const api = await answer.json();
  const operations = operationsOf(api);
  for (const tag of api.tags) {
    const own = operations.filter((operation) => operation.tags.includes(tag.name));
    if (own.length) {
      doors.append(element("section", {}, heading(2, tag.name), paragraph(tag.description), ...own.map(described(api))));
    }
  }
}

function operationsOf(api) {
  return Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ ...operation, path, method: wordFor(method, operation) })),
  );
}

function wordFor(method, operation) {
  return operation.responses["101"] ? "WEBSOCKET" : method.toUpperCase();
}

function described(api) {
  return (operation) => {
    const title = element(
      "summary",
      {},
      element("span", { class: "method" }, operation.method),
      element("span", { class: "path" }, operation.path),
      element("span", { class: "what" }, operation.summary),
    );
    return element("details", { id: operation.operationId }, title, ...partsOf(operation, api));
  };
}

function partsOf(operation, api) {
  const parts = [];
  const parameters = operation.parameters ?? [];
  if (parameters.length) {
    const rows = parameters.map((each) => [each.name, each.in, each.required ? "required" : "", each.description]);
    parts.push(heading(3, "In the address"), table(["name", "where", "", "meaning"], rows));
  }
  const fields = fieldsOf(operation, api);
  if (fields.length) {
    const rows = fields.map((each) => [each.name, typeOf(each), each.required ? "required" : "", each.description ?? ""]);
    parts.push(heading(3, "In the body"), table(["field", "type", "", "meaning"], rows));
  }
  parts.push(heading(3, "Answers"), table(["status", "content", "meaning"], answersOf(operation)));
  if (operation.method !== "WEBSOCKET") {
    parts.push(heading(3, "Try it"), element("pre", {}, commandFor(operation, fields)));
  }
  return parts;
}

function contentOf(operation) {
  return Object.entries(operation.requestBody?.content ?? {})[0] ?? ["", {}];
}

function fieldsOf(operation, api) {
  const schema = resolved(contentOf(operation)[1].schema, api);
  const required = schema?.required ?? [];
  return Object.entries(schema?.properties ?? {}).map(([name, field]) => ({
    ...field,
    name,
    required: required.includes(name),
  }));
}

function resolved(schema, api) {
  const name = schema?.$ref?.split("/").pop();
  return name ? api.components.schemas[name] : schema;
}

function typeOf(field) {
  if (isFile(field)) return "file";
  if (field.anyOf) return field.anyOf.filter((each) => each.type !== "null").map(typeOf).join(" or ");
  return field.type ?? "object";
}

function isFile(field) {
  return "contentMediaType" in field;
}

function answersOf(operation) {
  return Object.entries(operation.responses).map(([status, answer]) => [
    status,
    Object.keys(answer.content ?? {}).join(", "),
    answer.description,
  ]);
}

function commandFor(operation, fields) {
  const path = operation.path.replace("{voice}", "default").replace("{model}", "cosydit");
  const address = new URL(path.replace(/^[/]/, "./"), document.baseURI).href;
  const given = fields.filter((field) => field.required || field.name === "response_format");
  const words = ["curl"];
  if (operation.method !== "GET") words.push("-X", operation.method);
  if (contentOf(operation)[0].startsWith("multipart/")) {
    words.push(...given.flatMap((field) => ["-F", isFile(field) ? `${field.name}=@me.wav` : `${field.name}=...`]));
  } else if (given.length) {
    const body = Object.fromEntries(given.map((field) => [field.name, EXAMPLES[field.name] ?? ""]));
    words.push("-H", "'content-type: application/json'", "-d", `'${JSON.stringify(body)}'`);
  }
  const answer = Object.keys(operation.responses["200"].content)[0];
  const file = given.some((field) => field.name === "response_format") ? "speech.wav" : "speech.mp3";
  return [...words, address, ...(answer.startsWith("audio/") ? ["-o", file] : [])].join(" ");
}

function table(head, rows) {
  const line = (cells, tag) => element("tr", {}, ...cells.map((cell) => element(tag, {}, cell)));
  const body = element("tbody", {}, ...rows.map((cells) => line(cells, "td")));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, line(head, "th")), body));
}

function heading(level, text) {
  return element(`h${level}`, {}, text);
}

function paragraph(text) {
  return element("p", { class: "what" }, text);
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flatMap(spelled));
  return made;
}

/* Text with `code` in it as the page's parts; anything else as it is. */
function spelled(child) {
  if (typeof child !== "string" || !child.includes("`")) return [child];
  return child.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}
