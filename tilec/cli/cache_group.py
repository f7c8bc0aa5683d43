"""`tilec cache` and its options."""

from __future__ import annotations

import click

from tilec.cli.options import EPILOG, JSON


@click.group(epilog=EPILOG)
def cache() -> None:
    """Look after the store of stage products, which all projects of a user share."""


@cache.command("dir")
def cache_dir() -> int:
    """Print the folder of the store."""
    from tilec.cli.cache_commands import directory

    return directory()


@cache.command("size")
@JSON
def cache_size(as_json: bool) -> int:
    """Print how many blobs the store holds, and their bytes."""
    from tilec.cli.cache_commands import size

    return size(as_json)


@cache.command("stats")
@JSON
def cache_stats(as_json: bool) -> int:
    """Print what the store and the team's caches were good for, over all builds."""
    from tilec.cli.cache_commands import stats

    return stats(as_json)


@cache.command("verify")
def cache_verify() -> int:
    """Hash every blob; drop damaged entries (exit status 1 where there are any)."""
    from tilec.cli.cache_commands import verify

    return verify()


@cache.command("prune")
@click.option("--max-size", default="4G", show_default=True, metavar="BYTES", help="Keep at most this much; K, M, G.")
def cache_prune(max_size: str) -> int:
    """Drop what no entry names, then the least recently used entries."""
    from tilec.cli.cache_commands import prune

    return prune(max_size)


@cache.command("clean")
def cache_clean() -> int:
    """Remove the whole store, for every project; built artifacts stay."""
    from tilec.cli.cache_commands import clean

    return clean()
