//! Into `candle_core::Error`, `anyhow` and users' enums, and out again.

use std::io;
use std::process::Command;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_headroom::error::UpdateInterrupted;
use candle_headroom::process_batches;

use super::*;

/// What a user's function returns, three calls deep, each with its own error type.
fn through_candle() -> candle_core::Result<()> {
    fn inner() -> Result<(), Error> {
        Err(oom())?
    }
    Ok(inner()?)
}

fn through_user() -> Result<(), UserError> {
    through_candle()?;
    Ok(())
}

fn round_trips() {
    // ours → candle → ours: the same value, not one around another.
    let Error::ResourceExhausted(exhausted) = Error::from(through_candle().unwrap_err()) else {
        panic!("the type was lost")
    };
    let source = std::error::Error::source(&*exhausted).expect("candle's error is kept");
    let source = source.downcast_ref::<CandleError>().expect("with its type");
    assert_eq!(
        source.resource_exhausted().unwrap().resource,
        exhausted.resource
    );

    // Into anyhow, directly and inside candle's error, and out again.
    let direct = anyhow::Error::from(Error::from(oom()));
    assert!(
        direct
            .downcast_ref::<Error>()
            .unwrap()
            .resource_exhausted()
            .is_some()
    );
    let carried = anyhow::Error::from(through_candle().unwrap_err()).context("outer");
    let candle = carried.downcast_ref::<CandleError>().unwrap();
    assert!(candle.resource_exhausted().is_some());
    let any: &(dyn std::error::Error + Send + Sync) = carried.as_ref();
    assert!(any.resource_exhausted().is_some());

    // Into a user's enum and back through candle.
    let UserError::Candle(candle) = through_user().unwrap_err() else {
        panic!("the variant was lost")
    };
    assert!(matches!(Error::from(candle), Error::ResourceExhausted(_)));
    let user = UserError::from(Error::from(oom()));
    let UserError::Headroom(ours) = &user else {
        panic!("the variant was lost")
    };
    assert!(ours.resource_exhausted().is_some());

    // A user's own error goes through ours and candle's with its type.
    let error = Error::from(wrapped_context(UserError::Unrelated));
    assert!(matches!(
        error.downcast_ref::<UserError>(),
        Some(UserError::Unrelated)
    ));

    // ResourceExhausted on its own, and DeviceFault.
    let lone: ResourceExhausted = oom().resource_exhausted().unwrap();
    assert!(CandleError::from(lone).resource_exhausted().is_some());
    let lone: DeviceFault = cuda("DriverError(CUDA_ERROR_ASSERT, \"…\")")
        .device_fault()
        .unwrap();
    assert!(
        CandleError::from(Error::from(lone))
            .device_fault()
            .is_some()
    );

    super::wrappers::look_through_every_wrapper();
    find_the_caller_s_type();
}

/// Whether errors carry backtraces is fixed when the first one is captured, so each setting has a process of its own.
#[test]
fn with_and_without_backtraces() {
    const CHILD: &str = "HEADROOM_ROUND_TRIP_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let has_backtrace = matches!(CandleError::msg("x"), CandleError::WithBacktrace { .. });
        assert_eq!(
            has_backtrace,
            std::env::var("RUST_BACKTRACE").unwrap() == "1"
        );
        return round_trips();
    }
    for backtrace in ["0", "1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "error::round_trips::with_and_without_backtraces"])
            .env(CHILD, "1")
            .env("RUST_BACKTRACE", backtrace)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "RUST_BACKTRACE={backtrace}: {text}"
        );
        assert!(text.contains("1 passed"), "{text}");
    }
}

fn find_the_caller_s_type() {
    let carried = || CandleError::from(Error::external(Corrupt(7)));
    let errors: Vec<(&str, CandleError)> = vec![
        ("external", carried()),
        ("boxed", Error::external(Box::new(Corrupt(7))).into()),
        ("shared", Error::external(Arc::new(Corrupt(7))).into()),
        ("backtrace", with_backtrace(carried())),
        ("context", carried().context("in batch 17")),
        ("path", with_backtrace(carried().with_path("data"))),
        ("wrapped context", wrapped_context(Corrupt(7))),
        (
            "wrapped candle",
            wrapped_context(wrapped_context(carried())),
        ),
        ("io", CandleError::Io(io::Error::other(Corrupt(7)))),
        ("nested io", wrapped_context(io::Error::other(carried()))),
        (
            "backend",
            CandleError::Cuda(Box::new(Corrupt(7))).context("in layer 3"),
        ),
    ];
    let is_bare = |name| matches!(name, "external" | "backtrace");
    for (name, error) in errors {
        let error = Error::from(error);
        let text = error.to_string();
        assert!(error.resource_exhausted().is_none(), "{name}");
        assert_eq!(error.downcast_ref(), Some(&Corrupt(7)), "{name}");
        let error = error.downcast::<UserError>().unwrap_err();
        assert_eq!(error.to_string(), text, "{name}: unchanged");
        // Taken out where nothing is wrapped around it, and found by reference everywhere.
        match error.downcast::<Corrupt>() {
            Ok(corrupt) => assert_eq!((corrupt, is_bare(name)), (Corrupt(7), true)),
            Err(error) => {
                assert_eq!(error.downcast_ref(), Some(&Corrupt(7)), "{name}");
                assert!(!is_bare(name), "{name}");
            }
        }
    }
    // Through a closure, and an error of another kind around it.
    let x = Tensor::zeros((8, 2), DType::F32, &Device::Cpu).unwrap();
    let mut calls = 0;
    let result = process_batches(&x, 4, |_| {
        calls += 1;
        Err::<(), _>(Error::external(Corrupt(7)))?;
        Ok(())
    });
    assert_eq!(calls, 1, "not retried");
    assert_eq!(
        result.unwrap_err().downcast::<Corrupt>().unwrap(),
        Corrupt(7)
    );
    let inside = Error::from(UpdateInterrupted::new(Error::external(Corrupt(7))));
    assert_eq!(inside.downcast_ref(), Some(&Corrupt(7)));
    let inside = inside.downcast::<Corrupt>().unwrap_err();
    assert!(matches!(inside, Error::UpdateInterrupted(_)));
    assert_eq!(
        Error::external(Corrupt(7)).to_string(),
        "sample 7 is corrupt"
    );
}

#[test]
fn context_that_somebody_added_is_kept() {
    let error = CandleError::from(Error::from(oom())).context("in batch 17");
    let error = Error::from(error);
    let source = std::error::Error::source(error.resource_exhausted().unwrap()).unwrap();
    assert!(source.to_string().contains("in batch 17"), "{source}");
}

#[test]
fn a_status_brings_its_remedy_through_every_wrapper() {
    let too_new = || cuda("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"…\")");
    let expected = "update the driver, or build with a toolkit that is no newer";
    assert_eq!(too_new().remedy(), Some(expected));
    assert_eq!(too_new().context("a user's").remedy(), Some(expected));
    assert_eq!(Error::from(too_new()).remedy(), Some(expected));
    let any = anyhow::Error::from(too_new());
    let dynamic: &(dyn std::error::Error + Send + Sync + 'static) = any.as_ref();
    assert_eq!(dynamic.remedy(), Some(expected));
    // A program cannot act on it.
    assert!(too_new().resource_exhausted().is_none() && too_new().device_fault().is_none());
    let fault = cuda("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\")");
    assert_eq!(
        fault.remedy(),
        fault.device_fault().map(|fault| fault.remedy)
    );
    assert_eq!(
        oom().remedy(),
        None,
        "an exhaustion has remedies of its own"
    );
    assert_eq!(CandleError::Msg("no code".to_owned()).remedy(), None);
    let busy = cuda("DriverError(CUDA_ERROR_DEVICE_UNAVAILABLE, \"…\")");
    let remedy = busy.remedy().unwrap();
    assert!(remedy.contains("compute mode"), "{remedy}");
}
