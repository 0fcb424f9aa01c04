"""What a compiled model takes from actors, at whatever place of whatever family they are."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

from fairseq_tg.actors import Actor, actor_name
from fairseq_tg.compiled.layout import ACTORS as COMPILED_ACTORS
from fairseq_tg.compiled.piece_extract import Pieces


def unknown_actor(holder: Any) -> Optional[str]:
    """What to call the actor of a module, if it has one that the engine does not know."""
    if not hasattr(holder, "actor") or actor_name(holder.actor.net) in COMPILED_ACTORS:
        return None
    return f"--actor {actor_name(holder.actor.net)}"


def put_actor(tensors: Pieces, site: str, actor: Actor) -> None:
    for name, tensor in actor.state_dict().items():
        tensors[f"{site}.{name}"] = tensor


def put_further_actors(tensors: Pieces, sites: Dict[int, Dict[str, Any]]) -> Dict[str, Any]:
    """The actors that --actor-sites all adds, for each layer by the names of their places, and what a layout says of
    them."""
    found = {layer: {at: site.net for at, site in places.items()} for layer, places in sites.items() if places}
    for places in found.values():
        for at, actor in places.items():
            put_actor(tensors, at, actor)
    ranks = [actor.rank for places in found.values() for actor in places.values()]
    return {"site_layers": tuple(found), "site_rank": ranks[0]} if found else {}


def actor_fields(actors: Iterable[Actor]) -> Dict[str, Any]:
    """What a layout says of a model's actors, which differ in nothing but the sizes of what they see."""
    found = list(actors)
    if not found:
        return {}
    own_size = all(actor.hidden_dim == actor.state_dim for actor in found)
    return {
        "actor": actor_name(found[0]),
        "actor_hidden": 0 if own_size else found[0].hidden_dim,
        "actor_rank": found[0].rank,
    }
