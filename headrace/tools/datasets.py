"""`headrace datasets [NAME]`: the data sets whose shapes are known."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.catalog.known import Known, all_known, known


def datasets(
    name: Annotated[str | None, typer.Argument(help="One of them; without a name, all are listed.")] = None,
    category: Annotated[str | None, typer.Option("--category", "-c", help="Only those of a category.")] = None,
) -> None:
    """List the known data sets, or show one: its spec, schema, field map and quirks."""
    if name is not None:
        typer.echo("\n".join(_shown(known(name))))
        return
    entries = all_known(category)
    width = max(len(entry.name) for entry in entries)
    for word in dict.fromkeys(entry.category for entry in entries):
        typer.echo(f"{word}")
        for entry in entries:
            if entry.category == word:
                typer.echo(f"  {entry.name:<{width}}  {_place(entry)}{_marks(entry)}")
    typer.echo(f"{len(entries)} data sets; read one as known:NAME, see one with: headrace datasets NAME")


def _place(entry: Known) -> str:
    return f"headrace synth ({entry.synth})" if entry.synth else entry.repo


def _marks(entry: Known) -> str:
    marks = [word for word, is_so in (("for testing", entry.eval_only), ("gated", entry.gated)) if is_so]
    return f"  [{', '.join(marks)}]" if marks else ""


def _shown(entry: Known) -> list[str]:
    where = [("repo", entry.repo), ("synth", entry.synth), ("config", entry.config or ""), ("split", entry.split)]
    facts = [
        *where,
        ("splits", ", ".join(entry.splits)),
        ("also at", ", ".join(entry.alt_repos)),
        ("formatter", entry.formatter),
        ("group by", entry.group_by or ""),
        ("license", entry.license or ""),
        ("confidence", entry.confidence.replace("_", " ")),
    ]
    lines = [f"{entry.name}  ({entry.category}){_marks(entry)}"]
    lines += [f"  {word:<12}{value}" for word, value in facts if value]
    lines += _block("field map", [f"{ours}: {theirs or '(none)'}" for ours, theirs in entry.field_map.items()])
    lines += _block("columns", [f"{column}: {kind}" for column, kind in entry.columns.items()])
    lines += _block("quirks", entry.quirks)
    ask = "  (allow_eval=True is needed)" if entry.is_eval() else ""
    return [*lines, f"  {'spec':<12}known:{entry.name}{ask}"]


def _block(word: str, lines: list[str] | tuple[str, ...]) -> list[str]:
    return [f"  {word}", *(f"    {line}" for line in lines)] if lines else []
