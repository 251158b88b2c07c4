"""What `fit` is given beside a loader: class weights count, and nothing is ignored in silence."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras", minversion="3.7")

import ringfeed.keras  # noqa: E402 - imports Keras
from training import (  # noqa: E402
    CLASS_WEIGHT,
    WEIGHTS,
    Pairs,
    X,
    Y,
    history,
    make,
    over_arrays,
    small_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Whole:
    """Whole batches, as of a PyDataset."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[32 * index : 32 * index + 32], Y[32 * index : 32 * index + 32]


class Batches(Whole, keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """The same as Keras' own."""


# ---- class weights ----


@pytest.mark.parametrize("where", ["fit", "to_keras"])
@pytest.mark.parametrize("form", ["classes", "column", "one-hot", "floats"])
def test_class_weight(where: str, form: str) -> None:
    """Class weights count as over arrays, wherever they are given and whatever the targets are."""
    forms = {
        "classes": Y,
        "column": Y[:, None],
        "one-hot": np.eye(3, dtype=np.float32)[Y],
        "floats": Y.astype(np.float32),
    }
    settings = {"targets": form, "metrics": None}
    there = {"class_weight": CLASS_WEIGHT} if where == "to_keras" else {}
    here = {} if there else {"class_weight": CLASS_WEIGHT}
    found = history(make(X, forms[form]).to_keras(**there), small_model(**settings), **here)
    arrays = {"y": forms[form], "batch_size": 32, "shuffle": False}
    assert found == history(X, small_model(**settings), class_weight=CLASS_WEIGHT, **arrays)
    assert found != history(X, small_model(**settings), **arrays)


def test_class_weight_is_for_the_training_alone() -> None:
    """Weights given to `fit` end with it, and do not reach a validation over the same adapter."""
    model = small_model()
    fed = make().to_keras()
    found = history(fed, model, validation_data=fed, class_weight=CLASS_WEIGHT)
    assert found == over_arrays(
        validation_data=(X, Y), validation_batch_size=32, class_weight=CLASS_WEIGHT
    )
    assert history(fed) == over_arrays()


# ---- refusals ----


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"y": Y},
            "y= cannot be honoured beside to_keras(): the loader's batches carry the targets: "
            "return (x, y) from __getitem__",
        ),
        (
            {"sample_weight": WEIGHTS},
            "sample_weight= cannot be honoured beside to_keras(): the loader's batches carry the "
            "weights: return (x, y, sample_weight) from __getitem__",
        ),
        (
            {"batch_size": 8},
            "batch_size=8 cannot be honoured beside to_keras(): the loader makes batches of 32 "
            "rows; set batch_size of ringfeed.Loader",
        ),
        (
            {"shuffle": False},
            (
                "shuffle=False cannot be honoured beside to_keras(): the loader shuffles; set "
                "shuffle of ringfeed.Loader"
            ),
        ),
        (
            {"class_weight": [1, 2]},
            (
                "class_weight is a list, expected a mapping from class to weight; write it as in "
                "{0: 1.0, 1: 2.5}"
            ),
        ),
        (
            {"class_weight": {"cat": 2.0}},
            "class_weight has the key 'cat', expected the number of a class, as an int",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_fit_refuses_what_it_would_ignore(settings: dict[str, Any], text: str) -> None:
    """What Keras does not pass on to an adapter is refused with a reason."""
    with pytest.raises((ValueError, TypeError)) as caught:
        history(make(shuffle=True).to_keras(), **settings)
    assert str(caught.value) == text


def test_evaluate_and_predict_refuse_as_well() -> None:
    """Targets and batch sizes are refused by `evaluate` and `predict` too."""
    model, fed = small_model(), make().to_keras()
    with pytest.raises(ValueError, match=r"^y= cannot be honoured"):
        model.evaluate(fed, Y, verbose=0)
    with pytest.raises(ValueError, match=r"^batch_size=5 cannot be honoured"):
        model.predict(fed, batch_size=5, verbose=0)


def test_validation_is_refused_by_its_own_batch_size() -> None:
    """The batch size of a fit over arrays is no affair of its validation.

    `validation_batch_size` is.
    """
    validation = make().to_keras()
    history(X, y=Y, batch_size=8, epochs=1, validation_data=validation)
    history(
        make().to_keras(),
        batch_size=32,
        epochs=1,
        validation_data=validation,
        validation_batch_size=32,
    )
    with pytest.raises(ValueError, match=r"^validation_batch_size=7 cannot be honoured"):
        history(X, y=Y, epochs=1, validation_data=validation, validation_batch_size=7)
    with pytest.raises(ValueError, match=r"^y= cannot be honoured"):
        history(X, y=Y, epochs=1, validation_data=(validation, Y))


def test_validation_split_is_refused() -> None:
    """Keras itself refuses to split an adapter."""
    with pytest.raises(
        ValueError, match="`validation_split` is only supported for tensors or NumPy arrays"
    ):
        history(make().to_keras(), validation_split=0.2)


# ---- the order ----

UNSHUFFLED = (
    "fit(shuffle=True), Keras' default, shuffles a PyDataset and arrays but cannot shuffle a "
    "loader, and this one hands out every epoch in the order of the dataset; give shuffle=True to "
    "ringfeed.Loader or feed(), or shuffle=False to fit() if that order is wanted"
)


def warnings_of(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """Return what a call warns of, every time it does."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [one for one in seen if "shuffle" in str(one.message)]


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}], ids=["by default", "told"])
@pytest.mark.parametrize(
    "feeds",
    [
        lambda: make().to_keras(),
        lambda: ringfeed.Loader(Whole(), batch_size=None, workers=0).to_keras(),
        lambda: ringfeed.keras.feed(Whole(), workers=0),
    ],
    ids=["samples", "whole batches", "feed"],
)
def test_fit_that_cannot_shuffle_warns_once(
    settings: dict[str, Any], feeds: Callable[[], Any]
) -> None:
    """Where `fit` is to shuffle a loader in order, a warning at the user's line says what to do."""
    model, fed = small_model(), feeds()
    seen = warnings_of(lambda: model.fit(fed, epochs=2, verbose=0, **settings))
    assert [(str(one.message), one.filename, one.category) for one in seen] == [
        (UNSHUFFLED, __file__, UserWarning)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True},
        {"sampler": [*range(X.shape[0])][::-1]},
        {"sampler": lambda _epoch: range(X.shape[0])},
    ],
    ids=["shuffled", "a list", "a function"],
)
def test_fit_over_a_chosen_order_warns_of_nothing(settings: dict[str, Any]) -> None:
    """A loader that shuffles or has a sampler of the user's keeps its order without a word."""
    with make(**settings) as made:
        assert not warnings_of(lambda: history(made.to_keras(), epochs=1))


def test_only_training_warns_of_the_order() -> None:
    """`fit(shuffle=False)`, validation, `evaluate`, `predict` do not shuffle, and do not warn."""
    model = small_model()
    with make() as made, make(shuffle=True) as shuffled:
        fed = made.to_keras()
        assert not warnings_of(lambda: model.fit(fed, epochs=1, verbose=0, shuffle=False))
        assert not warnings_of(
            lambda: model.fit(shuffled.to_keras(), validation_data=fed, epochs=1, verbose=0)
        )
        assert not warnings_of(lambda: model.evaluate(fed, verbose=0))
        assert not warnings_of(lambda: model.predict(fed, verbose=0))


def test_a_shuffled_feed_warns_of_nothing() -> None:
    """`feed` that shuffles, and `install`, which does as Keras does, warn of nothing."""
    with ringfeed.keras.feed(Whole(), workers=0, shuffle=True) as fed:
        assert not warnings_of(lambda: history(fed, epochs=1))
    with ringfeed.keras.install():
        assert not warnings_of(lambda: history(Batches(), epochs=1))


def test_an_iterable_warns_of_no_order() -> None:
    """An iterable cannot be shuffled by its loader either."""
    with ringfeed.Loader(lambda: zip(X, Y, strict=True), workers=1, backend="thread") as made:
        assert not warnings_of(lambda: history(made.to_keras(), epochs=1))


# ---- what cannot be weighted ----


@pytest.mark.parametrize(
    ("make_loader", "text"),
    [
        (
            lambda: make(X, Y, WEIGHTS),
            (
                "class_weight does not go with sample weights, in Keras either; multiply both in "
                "__getitem__"
            ),
        ),
        (
            lambda: make(X),
            (
                "class_weight needs targets, and this loader's batches are inputs alone; return "
                "(x, y) from __getitem__"
            ),
        ),
        (
            lambda: ringfeed.Loader(Pairs(), batch_size=None, workers=0),
            "class_weight is for one array of targets, and this loader has several; return "
            "weights from __getitem__ instead, as in (x, y, sample_weight)",
        ),
    ],
    ids=["weights", "no targets", "several targets"],
)
def test_batches_that_cannot_be_weighted(
    make_loader: Callable[[], ringfeed.Loader], text: str
) -> None:
    """`to_keras` and `fit` refuse class weights where the batches have no place for them."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make_loader().to_keras(class_weight=CLASS_WEIGHT)
    assert str(caught.value) == text
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        history(make_loader().to_keras(), class_weight=CLASS_WEIGHT)
    assert str(caught.value) == text


def test_class_weight_given_twice() -> None:
    """Two class weights are one too many."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        history(make().to_keras(class_weight=CLASS_WEIGHT), class_weight=CLASS_WEIGHT)
    assert (
        str(caught.value)
        == "class_weight was given to to_keras() and to fit(); give it to one of them"
    )


def test_samples_that_keras_cannot_unpack() -> None:
    """A sample of four is refused at once."""
    with pytest.raises(ringfeed.SpecError) as caught:
        make(X, Y, WEIGHTS, X).to_keras()
    assert str(caught.value) == (
        "sample is a tuple of 4, expected x, (x, y) or (x, y, sample_weight), which is what Keras "
        "takes; group the inputs in __getitem__, as in ((a, b, c), y)"
    )
