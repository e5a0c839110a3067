//! The size and the texts of errors.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{AdamW, AdaptiveTrainer, Sgd, Timeline};

use super::*;

#[test]
fn the_error_is_small_and_can_be_sent() {
    fn can_be_sent<T: Send + Sync + 'static>() {}
    can_be_sent::<Error>();
    assert_eq!(size_of::<Error>(), 2 * size_of::<usize>());
    assert_eq!(size_of::<Option<Error>>(), size_of::<Error>());
}

#[test]
fn texts_say_what_is_known_and_nothing_else() {
    let mut exhausted = oom().resource_exhausted().unwrap();
    assert_eq!(
        exhausted.to_string(),
        "out of device memory: the cause is not known"
    );
    exhausted.phase = Some(Phase::Backward);
    exhausted.micro_batch = Some(8);
    exhausted.samples = Some(16..24);
    exhausted.bytes.peak = Some(300 << 20);
    exhausted.bytes.limit = Some(256 << 20);
    exhausted.cause = Cause::Limit;
    assert_eq!(
        exhausted.to_string(),
        "out of device memory in backward of a micro-batch of 8 (samples 16..24): the limit is reached (300.0 MiB of 256.0 MiB used)"
    );
    let long = format!("{exhausted:#}");
    assert!(
        long.contains("\n  highest use                     300.0 MiB  117 %"),
        "{long}"
    );
    assert!(!long.contains("free"), "{long}");
    assert_eq!(format!("{exhausted:?}"), long);
}

#[test]
fn bad_input_is_named_with_its_value_and_the_remedy() {
    let w = Var::new(0f32, &Device::Cpu).unwrap();
    let twice = Sgd::builder(vec![w.clone(), w.clone()]).build();
    let negative = AdamW::builder(vec![w.clone()]).learning_rate(-0.1).build();
    let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    let wide = trainer.step(&x, |x, _| x.broadcast_mul(&w));
    let trace = Timeline::new().save_trace("/no/such/folder/t.json");
    for (error, begin, end) in [
        (
            twice.unwrap_err(),
            "parameter `1` is listed twice:",
            " list each Var once",
        ),
        (
            negative.unwrap_err(),
            "`lr` of AdamW must be finite and at least 0,",
            " got -0.1",
        ),
        (
            wide.unwrap_err(),
            "the loss has shape [",
            ", 2]: reduce it to one number with `mean_all()` or `sum_all()`",
        ),
        (
            trace.unwrap_err(),
            "cannot write /no/such/folder/t.json: ",
            "",
        ),
    ] {
        let text = error.to_string();
        assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
    }
}
