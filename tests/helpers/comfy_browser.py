"""The ComfyUI editor in a real, headless Chromium, driven by a test."""

import atexit
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from boxes import Box, box_of, box_of_group, inside
from comfy_harness import ComfyServer
from comfy_setup import chromium
from playwright.sync_api import BrowserContext, Dialog, Page, Request, WebError, sync_playwright

_FLAGS = [
    *(
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
        "--disable-background-networking"
    ).split(),
    *"--disable-component-update --disable-sync --no-proxy-server".split(),
    # no request leaves this machine
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
_KEPT_BY_PAGES = "cookies,local_storage,indexeddb,service_workers,cache_storage"

_OPEN = (
    "window.app?.graph && window.app.canvas && "
    "window.app.extensionManager?.workflow?.activeWorkflow"
)
LISTEN = """() => {
  window.__runs = [];
  window.__queuePrompt = app.api.queuePrompt; // the pack's own
  for (const outcome of ["success", "error", "interrupted"])
    app.api.addEventListener("execution_" + outcome, (e) => window.__runs.push([outcome, e.detail?.exception_message]));
}"""
_ALL_NODES = """(() => {
  const inner = [...(app.graph.subgraphs?.values() ?? [])].flatMap((graph) => graph.nodes);
  return [...app.graph.nodes, ...inner];
})()"""
_BEGIN_AGAIN = """async () => {
  clearInterval(window.__watch);
  delete app.queuePrompt; // what a test has put in their place
  delete app.api.fetchApi;
  app.api.queuePrompt = window.__queuePrompt;
  const panel = app.extensionManager.bottomPanel;
  if (document.querySelector(".hf-story")) panel.toggleBottomPanelTab("headforcing.story");
  await app.extensionManager.command.execute("Comfy.NewBlankWorkflow");
  app.graph.clear();
  window.__runs.length = 0;
}"""
_FIT = """() => {
  const boxes = app.graph.nodes.map((n) => n.getBounding ? Array.from(n.getBounding()) : [...n.pos, ...n.size]);
  boxes.push(...(app.graph.groups ?? []).map((g) => [...g.pos, ...g.size]));
  const x0 = Math.min(...boxes.map((b) => b[0])), y0 = Math.min(...boxes.map((b) => b[1]));
  const x1 = Math.max(...boxes.map((b) => b[0] + b[2])), y1 = Math.max(...boxes.map((b) => b[1] + b[3]));
  const left = 80, top = 130, width = innerWidth - left - 40, height = innerHeight - top - 40;
  const ds = app.canvas.ds;
  ds.scale = Math.min(width / (x1 - x0), height / (y1 - y0), 1.5);
  ds.offset = [left / ds.scale - x0, top / ds.scale - y0];
  app.graph.setDirtyCanvas(true, true);
}"""


@cache
def _chromium() -> BrowserContext:
    """One for all tests of this process, which keeps what it has loaded of the editor (28 MB in 440
    files).

    Routes of Playwright for all requests would switch that off, and a page would cost half as much
    again.
    """
    executable = chromium()
    if executable is None:
        raise RuntimeError(
            "No Chromium found; install the system packages chromium and fonts-dejavu-core."
        )
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
    atexit.register(profile.cleanup)
    context = playwright.chromium.launch_persistent_context(
        profile.name, executable_path=str(executable), args=_FLAGS
    )
    context.set_default_timeout(120_000)  # what never comes fails; a busy machine takes its time
    return context


def of_node(kind: str) -> str:
    """JavaScript for the first node of a type of the pack, such as `PromptTimeline`."""
    return f"app.graph.nodes.find((node) => node.type === 'HeadForcing{kind}')"


def of_widget(kind: str, name: str) -> str:
    """JavaScript for a widget of the first node of a type of the pack."""
    return f"{of_node(kind)}.widgets.find((widget) => widget.name === '{name}')"


def of_player(kind: str = "Sampler") -> str:
    """JavaScript for the player on the first node of a type of the pack; undefined where it has
    none.
    """
    return (
        f"({of_node(kind)}?.widgets.find((widget) => widget.name === 'player')?.element.firstChild)"
    )


class Browser:
    """One editor page on a running server. Use as a context manager.

    `page_errors` are uncaught JavaScript errors, `alerts` what pages said in alert boxes, `blocked`
    the requests to other machines, none of which are let out. Pages of one find nothing of an
    earlier one in their storage. `page` is the Playwright page for everything not wrapped here.

    Args:
        any_source: let pages play media that they make themselves, as they may on most servers.
            Those of the tests run with --disable-api-nodes, which forbids it.
    """

    def __init__(
        self,
        server: ComfyServer,
        *,
        vue_nodes: bool = False,
        size: tuple[int, int] = (1600, 900),
        any_source: bool = False,
    ):
        self.server = server
        self._vue_nodes = vue_nodes
        self._size = size
        self._any_source = any_source
        self.page_errors: list[str] = []
        self.alerts: list[str] = []
        self.blocked: list[str] = []

    def __enter__(self) -> "Browser":
        self._context = _chromium()
        self._pages = list[Page]()
        self._listen()
        try:
            settings = {
                "Comfy.TutorialCompleted": True,
                "Comfy.Minimap.Visible": False,
                "Comfy.VueNodes.Enabled": self._vue_nodes,
            }
            for name, value in settings.items():
                self.server.post(f"/settings/{name}", value)
            self.page = self.open_page()
            self.page.evaluate(LISTEN)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for page in self._pages:
            page.close()
        self.rest()

    def _listen(self) -> None:
        self._listeners = {
            "weberror": self._note_error,
            "dialog": self._note_alert,
            "requestfailed": self._note_failed,
        }
        for event, listener in self._listeners.items():
            self._context.on(event, listener)  # type: ignore[call-overload]

    def rest(self) -> None:
        """Note nothing until `begin_again`: what happens then happens in pages of others."""
        for event, listener in self._listeners.items():
            self._context.remove_listener(event, listener)
        self._listeners = {}

    def begin_again(self) -> None:
        """Bring the page to a new, empty workflow, with the panel closed and nothing put in place
        of what the editor does.

        It takes a tenth of a second, and a new page ten.
        """
        self.page_errors.clear()
        self.alerts.clear()
        self.blocked.clear()
        self._listen()
        self.page.keyboard.press("Escape")  # a menu, or a field that has the keys
        self.page.evaluate(_BEGIN_AGAIN)

    def open_page(self) -> Page:
        """Another tab with the editor."""
        page = self._context.new_page()
        page.set_viewport_size({"width": self._size[0], "height": self._size[1]})
        session = self._context.new_cdp_session(page)
        if not self._pages:
            session.send(
                "Storage.clearDataForOrigin",
                {"origin": self.server.url, "storageTypes": _KEPT_BY_PAGES},
            )
        session.send("Page.setBypassCSP", {"enabled": self._any_source})
        self._pages.append(page)
        page.goto(self.server.url, wait_until="domcontentloaded")
        self.wait_until_open(page)
        return page

    def wait_until_open(self, page: Page | None = None) -> None:
        """Wait until the editor has restored its last workflow, which it does after all else."""
        (page or self.page).wait_for_function(_OPEN)

    def load_workflow(self, path: Path) -> None:
        """Open an editor-format workflow file, as dropping it on the canvas does."""
        self.page.evaluate(
            "(graph) => app.loadGraphData(graph)", json.loads(path.read_text(encoding="utf-8"))
        )
        self.page.wait_for_timeout(300)

    def load_api(self, prompt: dict[str, Any]) -> None:
        """Open an API-format prompt."""
        self.page.evaluate("(prompt) => app.loadApiJson(prompt, 'prompt.json')", prompt)
        self.page.wait_for_timeout(300)

    def queue(self) -> None:
        """Press Run. A refusal by the server shows up as wait_done() timing out and as an error in
        the page.
        """
        self.page.evaluate("() => { window.__runs.length = 0; return app.queuePrompt(0); }")

    def wait_done(self, timeout: float = 240) -> str:
        """Wait for the queued run's end: success, interrupted or error: <message>."""
        self.page.wait_for_function("window.__runs.length > 0", timeout=timeout * 1000)
        outcome, message = self.page.evaluate("window.__runs[0]")
        return f"error: {message}" if outcome == "error" else outcome

    def missing_nodes(self) -> list[str]:
        """Types in the open workflow, subgraphs included, that the editor does not know."""
        known = set(self.page.evaluate("Object.keys(LiteGraph.registered_node_types)"))
        return sorted(set(self.page.evaluate(f"{_ALL_NODES}.map((node) => node.type)")) - known)

    def run(self, timeout: float = 240) -> None:
        """Press Run and wait for its success."""
        self.queue()
        assert self.wait_done(timeout) == "success"

    def widgets(self, node_type: str) -> dict[str, Any]:
        """Widget names and values of the first node of this type."""
        found = self.page.evaluate(
            f"(type) => {_ALL_NODES}.filter((n) => n.type === type).map((n) => "
            "(n.widgets ?? []).map((w) => [w.name, typeof w.value === 'object' ? null : w.value]))",
            node_type,
        )
        return dict(found[0])

    def api_prompt(self) -> dict[str, Any]:
        """What the editor would send: the open workflow in API format."""
        return self.page.evaluate("async () => (await app.graphToPrompt()).output")

    def sent(self, kind: str) -> dict[str, Any]:
        """The inputs of the first node of a type of the pack in what the editor would send."""
        nodes = self.api_prompt().values()
        return next(node["inputs"] for node in nodes if node["class_type"] == f"HeadForcing{kind}")

    def write(self, kind: str, page: Page | None = None, **values: Any) -> None:
        """Change widgets of the first node of a type of the pack as a person does."""
        for name, value in values.items():
            put = (
                f"(value) => {{ const each = {of_widget(kind, name)}; each.value = value; "
                f"each.callback?.(value); }}"
            )
            (page or self.page).evaluate(put, value)

    def watch(self, kind: str = "Sampler") -> None:
        """Note what a player plays, ten times a second, for `watched`."""
        self.page.evaluate(
            f"""() => {{
              clearInterval(window.__watch);
              window.__seen = [];
              window.__watch = setInterval(() => {{
                const player = {of_player(kind)}, video = player?.querySelector("video"), text = player?.firstChild;
                if (video?.readyState >= 2)
                  __seen.push([video.src.startsWith("blob:"), video.duration, video.currentTime, text.textContent]);
              }}, 100);
            }}"""
        )

    def watched(self) -> tuple[list[list[Any]], list[list[Any]]]:
        """(length, time, text above it) of a video while it grew, and then of the finished one."""
        self.page.wait_for_function("window.__seen.some(([grows]) => !grows)")
        seen = self.page.evaluate("window.__seen")
        grew = [more for grows, *more in seen if grows]
        finished = [more for grows, *more in seen if not grows]
        assert grew + finished == [more for _, *more in seen], "first it grows, then it is finished"
        return grew, finished

    def last_report(self) -> str:
        """The text that the last run has shown."""
        history = self.server.get_json("/history?max_items=1")
        (run,) = history.values()
        (texts,) = [out["text"] for out in run["outputs"].values() if "text" in out]
        (report,) = texts
        return report

    def look_at(self, node: str, scale: float = 1.0, top: int = 110) -> None:
        """Bring a node into view; what is out of sight is not shown."""
        self.page.evaluate(
            f"""([scale, top]) => {{
              const node = {node}, view = app.canvas.ds;
              view.scale = scale;
              view.offset = [150 - node.pos[0], top - node.pos[1]];
              app.graph.setDirtyCanvas(true, true);
            }}""",
            [scale, top],
        )
        self.page.wait_for_timeout(300)

    def fit_view(self) -> None:
        """Bring the whole workflow into view."""
        self.page.evaluate(_FIT)
        self.page.wait_for_timeout(300)

    def outside_groups(self) -> list[str]:
        """Types of nodes, but for notes, that stick out of every group."""
        nodes, groups = self.page.evaluate(
            """[app.graph.nodes.map(({ type, pos, size }) => [type, [...pos], [...size]]),
              app.graph.groups.map(({ pos, size }) => [...pos, ...size])]"""
        )
        frames = [box_of_group(group) for group in groups]
        nodes = [(kind, box_of(*place)) for kind, *place in nodes if kind != "MarkdownNote"]

        def is_grouped(box: Box) -> bool:
            return any(inside(box, frame) for frame in frames)

        return [kind for kind, box in nodes if not is_grouped(box)]

    def heap_bytes(self) -> int:
        """The page's JavaScript heap after a garbage collection."""
        session = self.page.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        return int(session.send("Runtime.getHeapUsage")["usedSize"])

    def _note_alert(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":  # the page is loaded again
            dialog.accept()
            return
        self.alerts.append(dialog.message[:400])
        dialog.dismiss()

    def toasts(self) -> list[str]:
        """Texts of the messages now shown in the editor's corner."""
        return self.page.locator(".p-toast-message, [data-testid=toast]").all_inner_texts()

    def _note_error(self, error: WebError) -> None:
        self.page_errors.append(str(error.error)[:400])

    def _note_failed(self, request: Request) -> None:
        url = urlparse(request.url)
        if url.scheme not in ("data", "blob") and url.hostname not in ("127.0.0.1", "localhost"):
            self.blocked.append(request.url)
