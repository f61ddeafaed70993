"""The graph that was queued, as a node that runs sees it: where its inputs come from, its workflow
and its run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from ....headforcing_core.files import Fields
from ....headforcing_core.hashing import digest


def inputs_of(hidden: Any, node_id: str | None) -> Fields:
    """The inputs of a node; empty where there is none of that id."""
    return ((hidden.prompt or {}).get(node_id) or {}).get("inputs") or {}


def is_link(value: Any) -> TypeGuard[list[Any]]:
    """Whether an input comes from another node."""
    return isinstance(value, list)


def find_source(hidden: Any, class_type: str, values: Fields) -> str | None:
    """The id of the node of a class that `positive` of the running node comes from, straight or
    through other nodes.

    Of several the nearest one whose inputs are `values`. None where none is in the graph, as when
    nodes were made while the graph ran.
    """
    sources = _sources(hidden, [inputs_of(hidden, hidden.unique_id).get("positive")])
    found = [source for source in sources if hidden.prompt[source].get("class_type") == class_type]
    if len(found) > 1:
        found = [source for source in found if _may_have(inputs_of(hidden, source), values)]
    return next(iter(found), None)


def _may_have(inputs: Fields, values: Fields) -> bool:
    """Whether no input has another value; those that are left out or come over links have none to
    compare.
    """
    return all(
        inputs.get(name, value) == value or is_link(inputs[name]) for name, value in values.items()
    )


def settings_key(hidden: Any, left_out: Mapping[str, Collection[str]]) -> str:
    """A hash of the inputs of a node and of all nodes that they come from, whatever ids these have.

    `left_out` names, by class, the inputs that are not in it.
    """
    inputs = inputs_of(hidden, hidden.unique_id)
    ids = list(dict.fromkeys([hidden.unique_id, *_sources(hidden, inputs.values())]))
    numbers = {node_id: number for number, node_id in enumerate(ids)}
    parts = []
    for node_id in ids:
        kind = hidden.prompt[node_id].get("class_type")
        kept = {
            name: _comparable(value, numbers)
            for name, value in inputs_of(hidden, node_id).items()
            if name not in left_out.get(kind, ())
        }
        parts.append([kind, kept])
    return digest(parts)


def _comparable(value: Any, numbers: Mapping[str, int]) -> Any:
    """The value of an input; of a link, the number of its node in place of the id. A page sends 6
    where a graph that runs has 6.0.
    """
    if type(value) is int:
        return float(value)
    source = _source(value)
    return value if source is None else ["link", numbers.get(source), *value[1:]]


def _source(value: Any) -> str | None:
    """The id of the node that an input comes from; None where it is no link."""
    return value[0] if is_link(value) and value and isinstance(value[0], str) else None


def _sources(hidden: Any, values: Iterable[Any]) -> Iterator[str]:
    """All nodes that inputs with these values come from, the nearest first."""
    seen = set()
    links = list(values)
    for link in links:  # which grows
        source = _source(link)
        if source is not None and source not in seen and source in (hidden.prompt or {}):
            seen.add(source)
            yield source
            links += inputs_of(hidden, source).values()


def rewrite(hidden: Any, node_id: str, before: Fields, after: Fields) -> None:
    """Put other values of all widgets, by name, into a node: nodes that run later write the graph
    into their files.
    """
    changed = {name: value for name, value in after.items() if value != before[name]}
    inputs_of(hidden, node_id).update(changed)
    node = _workflow_node(workflow_of(hidden), node_id)
    values = node.get("widgets_values")
    for named in (values, node.get("widgets_values_named")):  # newer editors read the latter
        if isinstance(named, dict):
            named.update(changed)
    first = next(iter(before.values()))
    if not isinstance(values, list) or first not in values:
        return
    # they stand in the order of the widgets
    for place, name in enumerate(before, values.index(first)):
        if name in changed and values[place : place + 1] == [before[name]]:
            values[place] = changed[name]


def _workflow_node(workflow: Fields, node_id: str) -> Fields:
    """A node of a workflow by its id in the queued graph, "5" or, in a subgraph, "12:5"; empty
    where there is none.
    """
    definitions = _fields(workflow.get("definitions"))
    subgraphs = {str(graph.get("id")): graph for graph in _objects(definitions.get("subgraphs"))}
    graph = workflow
    found = Fields()
    for part in node_id.split(":"):
        nodes = {str(node.get("id")): node for node in _objects(graph.get("nodes"))}
        found = nodes.get(part, {})
        graph = subgraphs.get(str(found.get("type")), {})
    return found


def extra_of(hidden: Any) -> Fields:
    """The extra data of a queued graph; empty where another program has sent something else."""
    return _fields(getattr(hidden, "extra_pnginfo", None))


def workflow_of(hidden: Any) -> Fields:
    """The workflow that was queued; empty where a script has queued the graph alone."""
    return _fields(extra_of(hidden).get("workflow"))


def workflow_id(hidden: Any) -> str:
    """The id of the workflow that was queued; empty where it has none."""
    graph = str(workflow_of(hidden).get("id", ""))
    # all zeros is that of a graph without one, until its page is reloaded
    return graph if graph.strip("0-") else ""


def _fields(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Fields]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def prompt_id() -> str:
    """The id of the run in which a node runs."""
    from comfy_execution.utils import get_executing_context  # nothing else here needs ComfyUI

    context = get_executing_context()
    return "" if context is None else context.prompt_id
