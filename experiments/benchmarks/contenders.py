"""Which systems play a variant: our tiers on our backends, and the peers."""

from collections.abc import Mapping, Sequence

from system import Contender
from workload import Variant

PFL_THREADS = (1, 2)
LOCAL = ("in-process:1", "in-process:2")
PLACES = (*LOCAL, "ray:2")


def contenders(
    variant: Variant, peers: Sequence[str], places: Sequence[str] | None, pythons: Mapping[str, str | None]
) -> list[Contender]:
    """Ours first, then the peers that can play the variant.

    Args:
        variant: what is played.
        peers: asked for.
        places: `backend:workers` for ours; None: the variant's own.
        pythons: interpreters by peer, for those in environments of their own.
    """
    found = [
        ours(tier, place) for tier in variant.tiers for place in (places or variant.places.get(tier, PLACES))
    ]
    for peer in peers:
        if peer in variant.peers:
            found += _peer(peer, pythons)
    return found


def ours(tier: str, place: str) -> Contender:
    """One of our tiers on one backend with so many workers, such as `in-process:2`."""
    backend, _, workers = place.partition(":")
    engine = {"tier": tier, "backend": backend, "workers": int(workers or 1), "device": "cpu"}
    return Contender(f"{tier} {backend} {workers or 1}", tier, "ours", engine=engine)


def _peer(peer: str, pythons: Mapping[str, str | None]) -> list[Contender]:
    if peer == "pfl":
        return [
            Contender(
                f"pfl {count} thread{'s'[: count - 1]}",
                None,
                "pfl_research",
                (str(count),),
                python=pythons["pfl"],
            )
            for count in PFL_THREADS
        ]
    if peer == "fedjax":
        return [Contender("fedjax", None, "fedjax_research", python=pythons["fedjax"])]
    return [Contender(peer, None, peer)]
