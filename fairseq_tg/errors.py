"""The one exception for what a user can put right."""


class UserError(SystemExit):
    """One sentence for the user: what was wrong, with which value, what to do about it.

    A ``SystemExit``, because it is raised below fairseq's commands: uncaught, it prints its line on standard
    error and ends the process with status 1, without a traceback. An ordinary exception would not get
    that far: ``Trainer.load_checkpoint`` replaces it with its own, and Hydra prints a traceback for it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"fairseq_tg: error: {' '.join(message.split())}")
