"""Drive a real ComfyUI server, or its modules in a process of their own, from a test."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comfy_setup import REPO, ComfyInstall
from websockets.sync.client import ClientConnection, connect

PACK_FOLDER = "ComfyUI-HeadForcing"
STAND_IN_GPU = Path(__file__).parents[1] / "benchmarks" / "tests" / "stand_in_gpu.py"
_TEXT = 3  # binary websocket event: >I 3, >I length, node id, text
_PREVIEW_WITH_METADATA = 4  # the same with JSON metadata and the bytes of an image
_LAST_EVENTS = {f"execution_{outcome}": outcome for outcome in ("success", "error", "interrupted")}


@dataclass
class RunResult:
    """What one POST /prompt led to. `outcome` is success, error, interrupted or, if refused,
    invalid.
    """

    status: int
    outcome: str = "invalid"
    node_errors: dict[str, Any] = field(default_factory=dict)
    error: str | None = None  # exception message, or the reason for the refusal
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    # node id -> (value, max) in order
    progress: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    previews: list[tuple[str, bytes]] = field(default_factory=list)  # node id, image file bytes
    # node id -> texts below it, to who queued the graph
    said: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)  # node id -> what /history shows
    # ids of the nodes that really ran (not cached), in order
    executed: list[str] = field(default_factory=list)
    prompt_id: str = ""


def crowd() -> float:
    """How many processes want each core, at least 1: how much longer all takes than it would alone,
    by the last minute or by now, whichever is more.
    """
    begun, of_own = time.perf_counter(), time.thread_time()
    while time.thread_time() - of_own < 0.2:
        pass
    now = (time.perf_counter() - begun) / 0.2
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), now)


class ComfyServer:
    """A running ComfyUI with the pack in it. Use as a context manager; `base_dir` receives
    everything it writes.
    """

    def __init__(
        self,
        install: ComfyInstall,
        base_dir: Path,
        pack_dir: Path | None = REPO,
        *,
        # further node packs: file in `custom_nodes` -> source
        custom_nodes: Mapping[str, str] | None = None,
        stand_in_gpu: bool = False,  # on tensors that say they are on a GPU, see stand_in_gpu.py
        flags: Sequence[str] = ("--cpu",),  # of ComfyUI
    ):
        self.install = install
        self.base_dir = Path(base_dir)
        self.output_dir = self.base_dir / "output"
        self.input_dir = self.base_dir / "input"
        self._pack_dir = pack_dir
        self._custom_nodes = dict(custom_nodes or {})
        self._program = ["main.py", *flags]
        self._env = dict[str, str]()
        if stand_in_gpu:
            self._program = [str(STAND_IN_GPU), "main.py"]
            # times of its attention are none
            self._env["XDG_CACHE_HOME"] = str(self.base_dir / "cache")
        self._log_path = self.base_dir / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.client_id = ""  # of the latest `queue`

    def __enter__(self) -> "ComfyServer":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> "ComfyServer":
        """Start it, for the first time or after it was stopped."""
        for name in ("custom_nodes", "models", "input", "output"):
            (self.base_dir / name).mkdir(parents=True, exist_ok=True)
        nodes = self.base_dir / "custom_nodes"
        if self._pack_dir is not None and not (nodes / PACK_FOLDER).exists():
            (nodes / PACK_FOLDER).symlink_to(self._pack_dir, target_is_directory=True)
        for name, source in self._custom_nodes.items():
            (nodes / name).parent.mkdir(exist_ok=True)
            (nodes / name).write_text(source)
        self.port = self.port or _free_port()  # the same after it was stopped
        command = [
            str(self.install.python),
            *self._program,
            "--listen",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += ["--base-directory", str(self.base_dir), "--disable-api-nodes"]
        # 0.30.0 else forgets results when the machine's memory is in use elsewhere
        command += ["--cache-classic"]
        command += ["--database-url", f"sqlite:///{self.base_dir / 'comfyui.sqlite'}"]
        if self.install.frontend:
            command += ["--front-end-root", str(self.install.frontend)]
        with self._log_path.open("wb") as log:
            options = {
                "stdout": log,
                "stderr": log,
                "env": _environ(**self._env),
                "start_new_session": True,
            }
            self._process = subprocess.Popen(command, cwd=self.install.tree, **options)
        try:
            self._wait_until_up(timeout_seconds=300)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and everything it started."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # nothing it writes outlives the test
            self._process.wait()

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        # without colours
        return re.sub("\x1b\\[[0-9;]*m", "", self._log_path.read_text(errors="replace"))

    def model_path(self, folder: str, name: str) -> Path:
        """Where a model file of this name belongs, e.g. model_path("diffusion_models",
        "tiny.safetensors").
        """
        path = self.base_dir / "models" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def get(self, path: str) -> bytes:
        status, body = self.ask(path, method="GET")
        if status != 200:
            raise OSError(f"{path} is answered with status {status}")
        return body

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def post(self, path: str, data: Any) -> tuple[int, Any]:
        """POST JSON; returns the status and the JSON answer (None if it is not JSON)."""
        status, body = self.ask(path, data)
        try:
            return status, json.loads(body)
        except ValueError:
            return status, None

    def ask(
        self, path: str, body: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, bytes]:
        """A request with headers of one's own, `Sec_Fetch_Site="none"`; `body` is bytes or becomes
        JSON.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} | {
            key.replace("_", "-"): text for key, text in headers.items()
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, data if method == "POST" else None, named)
            response = connection.getresponse()
            return response.status, response.read()

    def object_info(self) -> dict[str, Any]:
        return self.get_json("/object_info")

    def hold(self, at: int | None, node: str = "", pause: float = 0.0) -> None:
        """Let the progress of that node, or of any, come so far and wait there, until a later place
        is given, or None, or Stop is pressed; each step takes `pause` seconds more.

        If a node is named, the server says "test.waits" to the one that queued it. A block of the
        demo model is 4 steps: at `4 * n + 1` it has made n blocks, whatever the speed of the machine.
        """
        status, _ = self.post("/test/pace", {"at": at, "node": node, "pause": pause})
        assert status == 200

    def interrupt(self) -> None:
        self.post("/interrupt", {})

    def end_runs(self) -> None:
        """Stop what runs, forget what is queued, and hold nothing."""
        self.hold(None)
        self.post("/queue", {"clear": True})
        end = time.monotonic() + 60
        while self._runs():
            assert time.monotonic() < end, "a run does not stop"
            self.interrupt()
            time.sleep(0.2)

    def is_idle_within(self, seconds: float) -> bool:
        """Whether nothing runs or is queued any more before so many seconds have passed."""
        end = time.monotonic() + seconds
        while self._runs():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def _runs(self) -> list[Any]:
        queue = self.get_json("/queue")
        return queue["queue_running"] + queue["queue_pending"]

    def free(self) -> None:
        """Unload the models and forget cached outputs.

        A server that is given a prompt at once may do so only after that, so this one waits for a
        prompt in between.
        """
        self.post("/free", {"unload_models": True, "free_memory": True})
        number = {"class_type": "PrimitiveInt", "inputs": {"value": 1}}
        self.queue(
            {
                "number": number,
                "shown": {"class_type": "PreviewAny", "inputs": {"source": ["number", 0]}},
            }
        )

    def view(self, filename: str, subfolder: str = "", type: str = "output", **_: Any) -> bytes:
        """A file by its address in a run's outputs: view(**result.outputs["9"]["images"][0])."""
        return self.get(
            "/view?"
            + urllib.parse.urlencode({"filename": filename, "subfolder": subfolder, "type": type})
        )

    def queue(
        self,
        prompt: dict[str, Any],
        timeout: float = 600,
        *,
        extra_data: Mapping[str, Any] | None = None,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> RunResult:
        """Run an API-format prompt to its end; `on_event` sees every event as it arrives.

        0.30.0 leaves out most messages of progress that carry no preview and follow another within
        0.1 s.
        """
        self.client_id = client_id = uuid.uuid4().hex
        address = f"ws://127.0.0.1:{self.port}/ws?clientId={client_id}"
        with connect(address, max_size=None, proxy=None, compression=None) as socket_:
            socket_.send(
                json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
            )
            body = {"prompt": prompt, "client_id": client_id, "extra_data": dict(extra_data or {})}
            status, answer = self.post("/prompt", body)
            result = RunResult(status, node_errors=(answer or {}).get("node_errors") or {})
            if status != 200:
                result.error = json.dumps(answer)
                return result
            result.prompt_id = answer["prompt_id"]
            self._listen(socket_, result, time.monotonic() + timeout, on_event)
        result.outputs = self._history(result.prompt_id).get("outputs", {})
        return result

    def _listen(
        self,
        socket_: ClientConnection,
        result: RunResult,
        deadline: float,
        on_event: Callable[[str, dict[str, Any]], None] | None,
    ) -> None:
        while True:
            try:
                message = socket_.recv(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                self.interrupt()
                raise TimeoutError(
                    f"The prompt did not finish in time. {self._log_tail()}"
                ) from None
            if isinstance(message, bytes):
                number = struct.unpack(">I", message[:4])[0]
                if number in (_TEXT, _PREVIEW_WITH_METADATA):
                    end = 8 + struct.unpack(">I", message[4:8])[0]
                    if number == _TEXT:
                        name = message[8:end].decode()
                        text = message[end:].decode()
                        result.said.setdefault(name, []).append(text)
                        if on_event:
                            on_event("said", {"node": name, "text": text})
                    else:
                        result.previews.append(
                            (json.loads(message[8:end])["node_id"], message[end:])
                        )
                continue
            event = json.loads(message)
            kind = event["type"]
            data = event.get("data") or {}
            result.events.append((kind, data))
            if on_event:
                on_event(kind, data)
            if data.get("prompt_id") != result.prompt_id:
                continue
            if kind == "progress":
                result.progress.setdefault(str(data["node"]), []).append(
                    (data["value"], data["max"])
                )
            elif kind == "executing" and data.get("node"):
                result.executed.append(str(data["node"]))
            elif kind in _LAST_EVENTS:
                result.outcome = _LAST_EVENTS[kind]
                result.error = (data.get("exception_message") or "").strip() or None
                return

    def _history(self, prompt_id: str) -> dict[str, Any]:
        for _ in range(200):  # the entry appears a little after the last event
            if entry := self.get_json(f"/history/{prompt_id}").get(prompt_id):
                return entry
            time.sleep(0.05)
        raise TimeoutError(f"/history never listed the prompt. {self._log_tail()}")

    def _wait_until_up(self, timeout_seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.get("/system_stats")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"ComfyUI {self.install.version} did not come up. {self._log_tail()}")

    def _log_tail(self) -> str:
        return "End of its log:\n" + self.log()[-6000:]


def run_in_comfy(install: ComfyInstall, program: Path, *args: object) -> str:
    """Run a program where `import comfy` works (CPU only) and return what it prints; raises with
    stderr if it fails.

    It begins with `from inside_comfy import load_pack`, which makes ComfyUI importable; `args` are
    in sys.argv[1:].
    """
    with tempfile.TemporaryDirectory(prefix="comfy-", ignore_cleanup_errors=True) as base:
        environ = _environ() | {
            "COMFY_TREE": str(install.tree),
            "COMFY_BASE": base,
            "COMFY_PACK": str(REPO),
        }
        command = [str(install.python), str(program), *map(str, args)]
        done = subprocess.run(
            command, cwd=base, env=environ, capture_output=True, text=True, timeout=900
        )
    if done.returncode:
        raise RuntimeError(
            f"The program failed in ComfyUI {install.version}:\n{done.stderr[-6000:]}"
        )
    return done.stdout


def _environ(**extra: str) -> dict[str, str]:
    # One OpenMP thread: tiny tensors on several threads spin at barriers, ten times slower.
    keep = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    return keep | {"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"} | extra


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
