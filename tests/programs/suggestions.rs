//! What programs suggest to try after a run.

use bytesize::ByteSize;
use candle_headroom::StepReport;
use candle_headroom::batch::{Plan, Reason, Speed};
use serde_json::json;

#[path = "../../examples/support/closing.rs"]
#[allow(dead_code, reason = "the programs use more of it")]
mod closing;

use closing::{Next, Totals};

const MIB: u64 = 1 << 20;

/// After a step of 16 samples in two micro-batches, with a peak of 20 MiB.
fn suggested(
    next: &Next,
    loss: f64,
    budget: Option<ByteSize>,
    known: impl FnOnce(&mut Plan),
) -> String {
    let (mut report, mut totals) = (StepReport::default(), Totals::default());
    report.samples = 16;
    report.sizes = vec![8, 8];
    report.peak = Some(20 * MIB);
    totals.add(&report, loss);
    let mut plan = Plan::new(Reason::Room);
    known(&mut plan);
    next.choose(&totals, budget, Some(plan))
}

fn next(batch: Option<(usize, usize)>) -> Next {
    Next {
        batch,
        steadier: Some("`--dtype f32`".to_owned()),
        otherwise: "`--steps 10`".to_owned(),
    }
}

#[test]
fn a_batch_fills_the_memory_that_is_left() {
    let budget = Some(ByteSize::mib(26));
    for (batch, fits, words) in [
        (Some((16, 100)), 20, "`--batch 20`: memory is left for 20 "),
        (Some((16, 100)), 19, "`--steps 10`"), // less than a quarter
        (Some((16, 18)), 40, "`--batch 18`: "),
        (Some((16, 16)), 40, "`--steps 10`"),
        (Some((32, 100)), 24, "`--batch 48`: "), // on two ranks
        (None, 40, "`--steps 10`"),
    ] {
        let found = suggested(&next(batch), 1., budget, |plan| plan.fits = Some(fits));
        assert!(found.starts_with(words), "{batch:?}, {fits}: {found}");
    }
    let unlimited = suggested(&next(Some((16, 100))), 1., None, |plan| {
        plan.fits = Some(40)
    });
    assert_eq!(unlimited, "`--steps 10`");
}

#[test]
fn a_budget_makes_micro_batches_as_large_as_the_fastest() {
    let budget = Some(ByteSize::mib(26));
    let speed = |size: usize| -> Speed {
        let speed = json!({ "size": size, "samples_per_second": 12.5 });
        serde_json::from_value(speed).unwrap()
    };
    for (size, words) in [
        // 16 MiB, and a little more.
        (
            4,
            "`--budget 17MiB`: micro-batches of 4 were the fastest, 12.5 samples a second",
        ),
        (8, "`--steps 10`"), // only the last batch had another
    ] {
        let found = suggested(&next(Some((16, 100))), 1., budget, |plan| {
            plan.each = Some(MIB);
            plan.faster = Some(speed(size));
        });
        assert_eq!(found, words);
    }
}

#[test]
fn a_loss_that_is_not_finite_comes_first() {
    let budget = Some(ByteSize::mib(26));
    let found = suggested(&next(Some((16, 100))), f64::NAN, budget, |plan| {
        plan.fits = Some(40)
    });
    assert_eq!(found, "`--dtype f32`");
    let mut next = next(None);
    next.steadier = None;
    let found = suggested(&next, f64::NAN, budget, |_| {});
    assert_eq!(found, "`--steps 10`");
}
