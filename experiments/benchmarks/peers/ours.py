"""fedsim itself: the round loop of `fedsim run`, with its JSON line, without checkpoints and evaluation."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from peers.conductor import Conductor
from plan import SEED, experiment_of
from workload import Variant

from fedsim.run.assembly import Parts, assemble
from fedsim.run.directory import RunDirectory
from fedsim.run.incidents import events_of
from fedsim.run.private_store import PrivateStore
from fedsim.run.round_loop import RoundLoop
from fedsim.run.threads import one_thread
from fedsim.run.transports import engine_federation, engine_options


class Rounds(Protocol):
    """Who says when a round is due: `peers.conductor.Conductor`, or a profiler in its place."""

    vector: Callable[[], Any]

    def wants_round(self) -> bool: ...

    def round_done(self) -> None: ...


def main(folder: Path, asked: dict[str, Any], conductor: Rounds) -> None:
    """Tiers T1 and T2 play through the engine; T0 plays Flower's own app on our grid."""
    engine = asked["engine"]
    variant = Variant(**asked["variant"])
    with one_thread():
        if engine["tier"] == "T0":
            _messages(folder, engine, variant, conductor)
        else:
            _rounds(assemble(experiment_of(variant, engine), SEED), Path(asked["out"]), conductor)


def _rounds(parts: Parts, out: Path, conductor: Rounds) -> None:
    directory = RunDirectory(out)
    os.close(directory.claim())
    directory.create()
    with closing(engine_federation(parts, PrivateStore(directory.private))) as federation:
        loop = RoundLoop(parts, federation)
        state = loop.start()
        conductor.vector = lambda: state.vector.numpy()
        while conductor.wants_round():
            state, record = loop.play(state)
            directory.append(record | {"events": events_of(federation)})
            conductor.round_done()
            if record["detours"]:
                raise SystemExit(f"Clients left their tier: {record['detours']}")


def _messages(folder: Path, engine: dict[str, Any], variant: Variant, conductor: Rounds) -> None:
    from peers.flower_app import FOLDER
    from peers.flower_app import Rounds as FlowerRounds
    from peers.planned import Planned

    from fedsim.flower.client_handler import ClientAppSetup
    from fedsim.flower.grid import run_id
    from fedsim.flower.session import open_grid

    os.environ[FOLDER] = str(folder)
    plan, options = Planned(folder), engine_options(experiment_of(variant, engine).engine)
    setup = ClientAppSetup(
        reference="peers.flower_app:client_app",
        directory=None,
        seed=SEED,
        clients=plan.known["clients"],
        run_id=run_id(SEED),
        run_config={},
    )
    with open_grid(options, setup) as grid:
        rounds = FlowerRounds(plan)
        conductor.vector = rounds.vector
        while conductor.wants_round():
            rounds.play(grid)
            conductor.round_done()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), Conductor())
