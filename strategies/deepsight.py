"""DeepSight: look into the output layer, and refuse groups of models trained on few classes.

Rieger, Nguyen, Miettinen and Sadeghi, "DeepSight: Mitigating Backdoor Attacks in Federated Learning Through
Deep Model Inspection", NDSS 2022, section IV: division differences, normalised update energies, threshold
exceedings, the clustering ensemble, and poisoned cluster identification.

What the paper leaves open is settled so: random inputs are uniform in [0, 1), from the round's stream; a
client outside every cluster is a group of its own; the smallest cluster has 2 clients, and a clustering may
not put all clients into one cluster (both as the `hdbscan` package would by itself, but for the size 5).
Quotients of probabilities are taken between logarithms, since a probability may round to 0. The clipping
bound is the median length of all n updates. If every group is refused, all weights are 0 and the model stays.
"""

from dataclasses import dataclass

import torch

from fedsim.contracts import Cohort, Decision, Matrix, Server, SmallestCohort, Tensors, Vector
from fedsim.errors import RoundError
from strategies.clusters import apart, density_clusters
from strategies.layers import Piece, output_layer
from strategies.rows import (
    clip_factors,
    combination,
    cosine_distances,
    norms,
    require,
    require_enough,
    squared_distances,
)

INPUTS_AT_ONCE = 2048
"""Random inputs per forward pass."""

LARGEST_LOGARITHM = 300.0
"""A quotient of probabilities beyond e^300 counts as e^300, whose square is still finite in float64."""


def update_energies(updates: Matrix, output: tuple[Piece, ...]) -> Matrix:
    """Normalised energy of each output's update (NEUP).

    Args:
        updates: [n, d].
        output: the tensors of the output layer, p outputs each.

    Returns:
        [n, p] float64: the squared sums of absolute changes behind an output, divided by their total; a
        row sums to 1, or is 0 where nothing changed.
    """
    n, outputs = len(updates), output[0].shape[0]
    energy = torch.zeros(n, outputs, dtype=torch.float64, device=updates.device)
    for piece in output:
        energy += updates[:, piece.columns].double().abs().reshape(n, outputs, -1).sum(dim=2)
    squared = energy.square()
    totals = squared.sum(dim=1, keepdim=True)
    return torch.where(totals > 0, squared / totals, 0.0)


def exceedings(energies: Matrix) -> Vector:
    """How many outputs' energies lie above max(0.01, 1/p) times the row's largest; [n, p] -> [n] int64."""
    share = max(0.01, 1 / energies.shape[1])
    return (energies > share * energies.max(dim=1, keepdim=True).values).sum(dim=1)


def division_differences(cohort: Cohort, server: Server, samples: int) -> Matrix:
    """Mean quotient of the clients' and the server's predicted probabilities on random inputs (DDifs).

    Args:
        cohort: of the round.
        server: with `predict` and `spec`.
        samples: random inputs to draw from `server.rng`.

    Returns:
        [n, p] float64.
    """
    if server.predict is None or server.spec is None:
        raise RoundError(
            "deepsight shows models random rows; it cannot do so with graphs: choose another strategy.kind."
        )
    sums = []
    for start in range(0, samples, INPUTS_AT_ONCE):
        shape = (min(INPUTS_AT_ONCE, samples - start), *server.spec.shape)
        inputs = torch.rand(shape, generator=server.rng).to(cohort.updates)
        before = server.predict(server.model, inputs).double().log_softmax(dim=1)
        sums.append(
            [_quotients(server.predict(server.model + row, inputs), before) for row in cohort.updates]
        )
    return torch.stack([torch.stack(part) for part in sums]).sum(dim=0) / samples


def _quotients(logits: Matrix, before: Matrix) -> Vector:
    """[b, p], [b, p] logarithms -> [p]: quotients of probabilities, summed over the inputs."""
    after = logits.double().log_softmax(dim=1)
    return (after - before).clamp_(max=LARGEST_LOGARITHM).exp_().sum(dim=0)


def refused(labels: list[int], suspicious: list[bool], most: float) -> list[bool]:
    """Who belongs to a group in which at least the share `most` is suspicious; [n] each.

    Args:
        labels: cluster numbers; a client with -1 is a group of its own.
        suspicious: per client.
        most: in (0, 1].
    """
    verdict = []
    for label, own in zip(labels, suspicious, strict=True):
        group = [other for other, number in zip(suspicious, labels, strict=True) if number == label]
        share = float(own) if label < 0 else sum(group) / len(group)
        verdict.append(share >= most)
    return verdict


@dataclass(frozen=True, kw_only=True)
class DeepSight:
    """The plain mean of the accepted updates, clipped to the median length.

    Attributes:
        samples: random inputs per seed.
        draws: sets of random inputs, each clustered apart (the paper's seeds).
        most_suspicious: tau; a group with at least this share of suspicious clients is refused.
        smallest_cluster: clients in the smallest cluster, and neighbours within a core distance.
    """

    samples: int = 20_000
    draws: int = 3
    most_suspicious: float = 1 / 3
    smallest_cluster: int = 2

    def __post_init__(self) -> None:
        """Refuse values that look at nothing."""
        require(self.samples >= 1, f"samples must be at least 1, found {self.samples}")
        require(self.draws >= 1, f"draws must be at least 1, found {self.draws}")
        require(
            0 < self.most_suspicious <= 1, f"most_suspicious must lie in (0, 1], found {self.most_suspicious}"
        )
        require(
            self.smallest_cluster >= 2, f"smallest_cluster must be at least 2, found {self.smallest_cluster}"
        )

    @property
    def smallest_cohort(self) -> SmallestCohort:
        """See `fedsim.contracts.Strategy`."""
        return SmallestCohort(
            f"deepsight with smallest_cluster={self.smallest_cluster}",
            self.smallest_cluster + 1,
            "lower strategy.smallest_cluster",
        )

    def init(self, model: Vector) -> Tensors:
        """No state."""
        return {}

    def step(self, state: Tensors, cohort: Cohort, server: Server) -> tuple[Tensors, Decision]:
        """The mean; an accepted client weighs 1/l times the factor it was cut by, others 0.

        Raises:
            RoundError: too few replies to cluster, no output layer, or data that are not rows.
        """
        require_enough(self.smallest_cohort, cohort)
        output = output_layer(cohort.layout)
        energies = update_energies(cohort.updates, output)
        counts = exceedings(energies).double()
        suspicious = (counts <= counts.quantile(0.5) / 2).tolist()
        labels = self._clusters(self._ensemble(cohort, server, energies, output))
        accepted = ~torch.tensor(refused(labels, suspicious, self.most_suspicious))
        lengths = norms(cohort.updates, kept=cohort.layout.trained)
        factors = clip_factors(lengths, float(lengths.quantile(0.5)))
        weights = accepted.to(lengths.device) * factors / accepted.sum().clamp(min=1)  # nobody: all are 0
        update = combination(cohort.updates, weights).to(cohort.updates.dtype)
        return state, Decision(update=update, weights=weights)

    def _ensemble(
        self, cohort: Cohort, server: Server, energies: Matrix, output: tuple[Piece, ...]
    ) -> Matrix:
        """[n, n]: how many of the three views hold two clients apart, on average."""
        quotients = [
            apart(self._clusters(_lengths(division_differences(cohort, server, self.samples))))
            for _ in range(self.draws)
        ]
        views = [torch.stack(quotients).mean(dim=0), apart(self._clusters(_lengths(energies)))]
        biases = [cohort.updates[:, piece.columns] for piece in output if len(piece.shape) == 1]
        if biases:
            views.append(apart(self._clusters(cosine_distances(torch.cat(biases, dim=1)))))
        return torch.stack(views).mean(dim=0)

    def _clusters(self, distances: Matrix) -> list[int]:
        return density_clusters(distances, smallest=self.smallest_cluster, neighbours=self.smallest_cluster)


def _lengths(features: Matrix) -> Matrix:
    """[n, n] Euclidean distances of features [n, p]."""
    return squared_distances(features).sqrt()
