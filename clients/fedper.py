"""FedPer: the last layers stay with the client and are trained together with the shared ones.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, Algorithm 1. The paper's K_P
last layers are named here, since a model's author knows what its last layers are called: every model of
this repository calls its classifier `head`.
"""

from dataclasses import dataclass

from clients.supervised import Supervised
from fedsim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FedPer(Supervised):
    """As `supervised`, with the personalisation layers in `private`."""

    private: tuple[str, ...] = ("head",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.private:
            raise ConfigError('private must name a part of the model, such as "head", found [].')
