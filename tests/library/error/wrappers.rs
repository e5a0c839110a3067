//! An exhaustion is found through every wrapper in which a user's code can hide it.

use std::io;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_headroom::error::{UpdateInterrupted, WindowLost};
use candle_headroom::process_batches;

use super::*;

/// An enum as users write them, which passes other errors through.
#[derive(Debug, thiserror::Error)]
enum Passing {
    #[error(transparent)]
    Headroom(#[from] Error),
    #[error(transparent)]
    Boxed(#[from] Box<Error>),
    #[error(transparent)]
    Shared(#[from] Arc<Error>),
    #[error(transparent)]
    Candle(#[from] CandleError),
    #[error(transparent)]
    BoxedCandle(#[from] Box<CandleError>),
    #[error(transparent)]
    SharedCandle(#[from] Arc<CandleError>),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Anyhow(#[from] anyhow::Error),
    #[error("a source")]
    Source(#[source] Box<CandleError>),
    #[error("nested")]
    Nested(#[source] Box<Passing>),
    #[error("only displayed: {0}")]
    Displayed(Error),
}

type Wrapping = (&'static str, fn() -> Passing);

/// Every way in which a user's enum can hide an exhaustion.
#[rustfmt::skip] // a row a line
const PASSING: &[Wrapping] = &[
    ("ours", || detailed().into()),
    ("boxed", || Box::new(detailed()).into()),
    ("shared", || Arc::new(detailed()).into()),
    ("candle", || candle().into()),
    ("boxed candle", || Box::new(candle()).into()),
    ("shared candle", || Arc::new(candle()).into()),
    ("backtrace", || with_backtrace(candle()).into()),
    ("boxed backtrace", || Box::new(with_backtrace(candle())).into()),
    ("context", || candle().context("in layer 3").into()),
    ("path", || candle().with_path("weights").bt().into()),
    ("wrapped context", || wrapped_context(detailed()).into()),
    ("wrapped candle", || wrapped_context(candle()).into()),
    ("wrapped enum", || wrapped_context(Passing::from(Box::new(detailed()))).into()),
    ("candle's wrap", || CandleError::wrap(detailed()).into()),
    ("wrapped twice", || CandleError::wrap(with_backtrace(wrapped_context(candle()))).into()),
    ("io", || io::Error::other(detailed()).into()),
    ("io around an enum", || io::Error::other(Passing::from(detailed())).into()),
    ("io in candle", || CandleError::Io(io::Error::other(Passing::from(Arc::new(detailed())))).into()),
    ("anyhow", || anyhow::Error::from(detailed()).into()),
    ("anyhow with context", || anyhow::Error::from(candle()).context("outer").into()),
    ("source", || Passing::Source(Box::new(with_backtrace(candle())))),
    ("nested", || Passing::Nested(Box::new(with_backtrace(candle().context("inner")).into()))),
    ("displayed", || Passing::Displayed(detailed())),
];

/// Those that lead to the exhaustion itself. Of the others only the text comes through.
const TYPED: [&str; 2] = ["anyhow with context", "source"];

pub(super) fn look_through_every_wrapper() {
    for (name, make) in PASSING {
        let check = |way: &str, found: Option<&ResourceExhausted>| {
            let found = found.unwrap_or_else(|| panic!("{name} {way}"));
            let details = (found.resource, found.cause, found.phase);
            let expected = (Resource::PinnedMemory, Cause::Fragmented, Some(Phase::Load));
            assert_eq!(details, expected, "{name} {way}");
            // A transparent enum has no source but that of its content, so that only the text is left.
            let expected = Some(12345).filter(|_| TYPED.contains(name));
            assert_eq!(found.bytes.free, expected, "{name} {way}");
        };
        let error: Box<dyn StdError + Send + Sync> = Box::new(make());
        check("as it is", error.resource_exhausted().as_ref());
        let any = anyhow::Error::from(make());
        let any: &(dyn StdError + Send + Sync) = any.as_ref();
        check("in anyhow", any.resource_exhausted().as_ref());
        check(
            "in context",
            wrapped_context(make()).resource_exhausted().as_ref(),
        );
        // Candle keeps what the error displays, and nothing else.
        if make().to_string().contains("out of pinned host memory") {
            let wrapped = CandleError::wrap(make());
            check("in candle's wrap", wrapped.resource_exhausted().as_ref());
        }
        let external = Error::external(make());
        check("as an external error", external.resource_exhausted());
        let carried = Error::from(with_backtrace(external.into()));
        check("through candle", carried.resource_exhausted());
        assert!(carried.downcast_ref::<Passing>().is_some(), "{name}");

        // In a closure it is retried.
        let x = Tensor::arange(0f32, 8., &Device::Cpu).unwrap();
        let ways: [fn(Passing) -> Error; 2] = [
            |error| Error::external(error),
            |error| Error::from(wrapped_context(error)),
        ];
        for carry in ways {
            let mut is_first = true;
            let sums = process_batches(&x, 8, |chunk| match std::mem::take(&mut is_first) {
                true => Err(carry(make()))?,
                false => chunk.sum_all()?.to_scalar::<f32>(),
            });
            assert_eq!(sums.unwrap().iter().sum::<f32>(), 28., "{name}");
        }
    }
    // A driver's error that candle has turned into text.
    let text = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
    for message in [
        CandleError::msg(text),
        CandleError::msg(text).context("in layer 3"),
        CandleError::wrap(text),
    ] {
        let error: Box<dyn StdError + Send + Sync> = Box::new(Passing::from(message));
        let exhausted = error.resource_exhausted().unwrap();
        assert_eq!(exhausted.resource, Resource::DeviceMemory);
    }
    // What must not be retried.
    let interrupted: [fn() -> Error; 2] = [
        || UpdateInterrupted::new(detailed()).into(),
        || WindowLost::new(3, detailed()).into(),
    ];
    for make in interrupted {
        for error in [
            Passing::from(make()),
            Passing::from(Box::new(make())),
            Passing::from(with_backtrace(make().into())),
            Passing::from(CandleError::wrap(make())),
            Passing::Displayed(make()),
        ] {
            let error: Box<dyn StdError + Send + Sync> = Box::new(error);
            assert!(error.resource_exhausted().is_none(), "{error}");
        }
    }
}

/// A `source()` that leads back to its own error does not hang the search.
#[test]
fn an_endless_chain_ends() {
    #[derive(Debug)]
    struct Endless;
    impl std::fmt::Display for Endless {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("endless")
        }
    }
    impl StdError for Endless {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(self)
        }
    }
    let error = Error::external(Endless);
    assert!(error.resource_exhausted().is_none());
    assert!(error.downcast_ref::<Corrupt>().is_none());
}
