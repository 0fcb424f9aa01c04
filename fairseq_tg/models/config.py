"""The options of the tg models."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
from dataclasses import dataclass, field
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_tg.actors import ACTORS


@dataclass
class ActorConfig(FairseqDataclass):
    base_checkpoint: str = field(
        default="",
        metadata={"help": "the trained fairseq checkpoint to put actors on; its architecture is read from it"},
    )
    actor: str = field(default="gate", metadata={"help": f"form of the actors: {', '.join(ACTORS.names())}"})
    actor_hidden: int = field(
        default=0,
        metadata={"help": "size of the hidden layers of ff, ff2 and rnn actors (0: that of the decoder state)"},
    )
    actor_rank: int = field(
        default=0, metadata={"help": "factor each map of an actor through this many dimensions (0: full maps)"}
    )
    actor_layers: Optional[str] = field(
        default=None,
        metadata={"help": "which decoder layers get actors: all or last (default: as in the paper, all)"},
    )
    actor_sites: str = field(
        default="attention",
        metadata={
            "help": "where actors act: attention (the paper's places); all: also a small gate behind every other "
            "sublayer of the decoder (self-attention and feed-forward; the convolutions; the LSTM layers); maps: also "
            "a linear actor beside every linear map of encoder and decoder, which costs nothing once compiled"
        },
    )
    actor_site_rank: int = field(
        default=64,
        metadata={"help": "of the actors that --actor-sites all or maps adds: the rank of their maps (0: full maps)"},
    )
    base_dropout: bool = field(
        default=False, metadata={"help": "keep the base's own dropout on while its actors are trained"}
    )
    base_record: str = field(
        default="", metadata={"help": "not an option: what a saved model keeps of its base, written when it is built"}
    )

    def _get_all_attributes(self) -> List[str]:
        return [name for name in super()._get_all_attributes() if name != "base_record"]
