"""Reinforcement learning: play one move at a time, and train on batches of 1,024 remembered moves.

Run it: python replay_buffer.py (needs torch). The game is Catch: a ball falls down a grid, and a
paddle on its floor must catch it.

Why it is built in this way:

- Moves that surprised the player come more often (prioritized experience replay): each training
  step tells a PrioritizedSampler its errors. A batch has the numbers of its moves and their weights
  in the loss.
- The memory changes with every move, so nothing may be copied to workers. A *thread* of this
  process gathers from the arrays that the game writes to, in C and without the GIL.
- Batches are gathered in advance, one for each slot, and a thread must not read a move while the
  game overwrites it. So a move is removed from the sampler earlier, by as many moves as the game
  plays while a batch waits.
- For a memory of any size, the loader takes three slots of 1,024 moves.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

import ringfeed

HEIGHT, WIDTH = 8, 5
MOVES = (-1, 0, 1)  # of the paddle
CAPACITY = 4096  # moves remembered
BATCH, BATCHES = 1024, 480
SLOTS = 3  # batches that exist at once
MOVES_PER_BATCH = 32
BATCHES_TO_AGE = 40  # of the older net
DISCOUNT = 0.9

random = np.random.default_rng(0)


class Catch:
    """The game; `picture` is what the player sees."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Drop a new ball."""
        self.row, self.ball, self.paddle = (
            0,
            int(random.integers(WIDTH)),
            int(random.integers(WIDTH)),
        )

    def picture(self) -> np.ndarray:
        """Return the grid with ball and paddle."""
        grid = np.zeros((HEIGHT, WIDTH), np.float32)
        grid[self.row, self.ball] = grid[HEIGHT - 1, self.paddle] = 1
        return grid

    def move(self, action: int) -> tuple[float, bool]:
        """Move the paddle and let the ball fall by one.

        Return the reward and whether the game is over.
        """
        self.paddle = min(max(self.paddle + MOVES[action], 0), WIDTH - 1)
        self.row += 1
        over = self.row == HEIGHT - 1
        return (1.0 if self.ball == self.paddle else -1.0) * over, over


class Memory:
    """The last moves, in arrays that are written in turn.

    The loader reads `arrays`, in the order of `sampler`.
    """

    def __init__(self) -> None:
        self.written = 0
        self.arrays = {
            "before": np.zeros((CAPACITY, HEIGHT, WIDTH), np.float32),
            "action": np.zeros(CAPACITY, np.int64),
            "reward": np.zeros(CAPACITY, np.float32),
            "after": np.zeros((CAPACITY, HEIGHT, WIDTH), np.float32),
            "over": np.zeros(CAPACITY, np.bool_),
        }
        self.sampler = ringfeed.orders.PrioritizedSampler(
            CAPACITY,
            alpha=0.6,
            beta=lambda updates: min(1.0, 0.4 + 0.6 * updates / BATCHES),
            num_samples=BATCHES * BATCH,
            filled=0,
        )

    def add(self, **move: object) -> None:
        """Overwrite the oldest move, which no drawn batch has any more."""
        place = self.written % CAPACITY
        for name, value in move.items():
            self.arrays[name][place] = value
        self.sampler.add(place)
        self.written += 1
        self.sampler.remove((self.written + SLOTS * MOVES_PER_BATCH) % CAPACITY)


class Player:
    """A net that values each move, and an older copy of it to learn from."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(HEIGHT * WIDTH, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, len(MOVES)),
        )
        self.older = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.predicted = 0

    def choose(self, picture: np.ndarray, curiosity: float) -> int:
        """Return the best move for one picture, or any."""
        if random.random() < curiosity:
            return int(random.integers(len(MOVES)))
        self.predicted += 1
        with torch.no_grad():
            return int(self.net(torch.from_numpy(picture)[None]).argmax())

    def learn(self, batch: dict[str, torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
        """Take one step towards the reward and the worth of what came after.

        Return how far off each move was.
        """
        with torch.no_grad():
            worth = self.older(batch["after"]).amax(1) * ~batch["over"]
        values = self.net(batch["before"]).gather(1, batch["action"][:, None])[:, 0]
        goals = batch["reward"] + DISCOUNT * worth
        loss = (weight * torch.nn.functional.smooth_l1_loss(values, goals, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return (goals - values.detach()).abs()


def play(game: Catch, player: Player, memory: Memory, curiosity: float) -> None:
    """Play one move and remember it."""
    before = game.picture()
    action = player.choose(before, curiosity)
    reward, over = game.move(action)
    memory.add(before=before, action=action, reward=reward, after=game.picture(), over=over)
    if over:
        game.begin()


def caught(player: Player, games: int = 200) -> float:
    """Return the share of games won."""
    game, won = Catch(), 0
    for _ in range(games):
        game.begin()
        over = False
        while not over:
            reward, over = game.move(player.choose(game.picture(), curiosity=0))
        won += reward > 0
    return won / games


torch.manual_seed(0)
torch.set_num_threads(1)  # the nets are too small to share
game, memory, player = Catch(), Memory(), Player()
print(f"caught before training: {caught(player):.0%}")
player.predicted = 0

for _ in range(1000):  # something to begin with
    play(game, player, memory, curiosity=1)

with ringfeed.Loader(
    memory.arrays,
    batch_size=BATCH,
    sampler=memory.sampler,
    workers=1,
    backend="thread",
    slots=SLOTS,
) as loader:
    trained, unknown = 0, []
    for batch, index, weight in loader.to_torch():
        for _ in range(
            MOVES_PER_BATCH
        ):  # one sample at a time, while the thread gathers the next 1,024
            play(game, player, memory, curiosity=max(0.05, 1 - trained / 160))
        memory.sampler.update(index, player.learn(batch, weight) + 0.01)
        unknown.append(memory.sampler.pending // BATCH)
        trained += 1
        if trained % BATCHES_TO_AGE == 0:
            player.older.load_state_dict(player.net.state_dict())

    print(
        f"trained on {trained} batches of {BATCH:,} moves, and predicted {player.predicted:,} "
        "moves one by one"
    )
    print(f"caught after training: {caught(player):.0%}")
    print(
        f"each batch was drawn without the errors of the {max(unknown)} before it, and with all "
        "others"
    )
    print(f"shared memory: {loader.memory / 1e6:.1f} MB for a memory of {CAPACITY:,} moves")
