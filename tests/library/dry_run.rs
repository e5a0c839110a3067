//! Work on a card that is not there: with the feature `cuda`, on the simulated driver.

use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use candle_headroom::Result;
use candle_headroom::testing::DryRun;

fn zeros(gib: usize) -> Result<Tensor> {
    Ok(Tensor::zeros(
        (gib, 1 << 28),
        DType::F32,
        &Device::new_cuda(0)?,
    )?)
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use candle_core::{D, Module, Var};
    use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};
    use candle_nn::{VarBuilder, VarMap, linear};

    use super::*;

    /// Parameters, moments and gradients are those of 1024 × 1024 numbers, the activations those of all samples.
    #[test]
    fn a_step_of_a_trainer() -> Result<()> {
        let peak = DryRun::on("RTX 4090").run(|| {
            let memory = DeviceMemory::cuda(0).open()?;
            let varmap = VarMap::new();
            let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
            let layer = linear(1 << 10, 1 << 10, vb)?;
            let optimizer = AdamW::builder(&varmap).build()?;
            let mut trainer = AdaptiveTrainer::builder(optimizer)
                .memory(&memory)
                .build()?;
            let x = Tensor::zeros((1 << 16, 1 << 10), DType::F32, memory.device())?;
            for _ in 0..3 {
                trainer.step(&x, |x, _| {
                    layer.forward(&x)?.sqr()?.mean(D::Minus1)?.mean_all()
                })?;
            }
            Ok(())
        })?;
        assert!(peak.fits(), "{peak}");
        let mib = peak.tensor_bytes() >> 20;
        // The input has 256 MiB, and so have the output, its square, and the gradients of both as long as candle holds them.
        assert!((1024..4096).contains(&mib), "{peak}");
        assert!(
            peak.at().starts_with("step ") && peak.at().ends_with(", backward"),
            "{peak}"
        );
        Ok(())
    }

    /// Spans of a [`LayerMemory`] name the layer at the peak.
    #[cfg(feature = "layers")]
    #[test]
    fn layers_at_the_peak() -> Result<()> {
        use candle_headroom::layers::LayerMemory;
        use tracing_subscriber::layer::SubscriberExt;

        let peak = DryRun::on("RTX 4090").run(|| {
            let memory = DeviceMemory::cuda(0).open()?;
            let layers = LayerMemory::new(&memory);
            let subscriber = tracing_subscriber::registry().with(layers.layer());
            tracing::subscriber::with_default(subscriber, || {
                let w = Var::zeros((1 << 10, 1 << 10), DType::F32, memory.device())?;
                let vars = vec![w.clone()];
                let optimizer = AdamW::builder(vars).build()?;
                let mut trainer = AdaptiveTrainer::builder(optimizer)
                    .memory(&memory)
                    .build()?;
                let x = Tensor::zeros((1 << 10, 1 << 10), DType::F32, memory.device())?;
                let block = tracing::trace_span!("block");
                let wide = tracing::trace_span!("wide");
                trainer.step(&x, |x, _| {
                    let _block = block.enter();
                    let y = x.matmul(&w)?;
                    // More than all the rest, and gone before the loss.
                    wide.in_scope(|| Tensor::zeros(1 << 28, DType::F32, y.device()))?;
                    y.sqr()?.mean_all()
                })?;
                Ok(())
            })
        })?;
        assert_eq!(peak.at(), "step 1, forward, block.wide", "{peak}");
        assert!(peak.tensor_bytes() >> 30 == 1, "{peak}");
        Ok(())
    }

    #[test]
    fn work_that_does_not_fit() -> Result<()> {
        let peak = DryRun::on("RTX 3060").run(|| {
            let _held = zeros(8)?;
            zeros(8)
        })?;
        assert!(!peak.fits());
        assert_eq!(peak.tensor_bytes(), 16 << 30);
        assert_eq!(
            peak.to_string(),
            "16.0 GiB of tensors, on the card RTX 3060: does not fit"
        );
        Ok(())
    }

    /// As an adaptive batch does.
    #[test]
    fn work_that_goes_on_with_less() -> Result<()> {
        let peak = DryRun::on("RTX 3060").run(|| zeros(16).or_else(|_| zeros(4)))?;
        assert!(peak.fits());
        assert_eq!(peak.tensor_bytes(), 4 << 30);
        Ok(())
    }

    #[test]
    fn work_that_fails_for_another_reason() {
        let failed = DryRun::on("24GiB").run(|| {
            let w = Var::zeros((2, 3), DType::F32, &Device::new_cuda(0)?)?;
            Ok(w.matmul(&w)?)
        });
        let error = failed.expect_err("the shapes do not match");
        assert!(error.is_testing());
        assert!(
            error.to_string().contains("shape mismatch in matmul"),
            "{error}"
        );
    }

    /// The pool of a trainer is asked for more than its limit when it is opened, which is no lack of memory.
    #[test]
    fn work_that_fails_after_a_device_was_opened() {
        let failed = DryRun::on("24GiB").run(|| {
            let _memory = DeviceMemory::cuda(0).open()?;
            Err::<(), _>(candle_headroom::Error::external("no such dataset"))
        });
        let error = failed.expect_err("it does not train").to_string();
        assert!(error.contains("no such dataset"), "{error}");
    }

    #[test]
    fn work_that_runs_out_under_a_limit_of_its_own() {
        let failed = DryRun::on("24GiB").run(|| {
            let limit = candle_headroom::ByteSize::gib(1);
            let memory = DeviceMemory::cuda(0).limit(limit).open()?;
            Ok(Tensor::zeros((2, 1 << 28), DType::F32, memory.device())?)
        });
        let error = failed.expect_err("its limit says nothing of the card");
        assert!(error.is_testing());
    }

    #[test]
    fn a_second_dry_run_is_refused() -> Result<()> {
        assert!(DryRun::on("24GiB").run(|| zeros(1))?.fits());
        let error = DryRun::on("RTX 3060").run(|| zeros(20));
        let error = error.expect_err("it is the second").to_string();
        assert!(error.contains("a test of its own"), "{error}");
        Ok(())
    }

    #[test]
    fn work_that_does_not_end() {
        let run = DryRun::on("24GiB").time_limit(Duration::from_secs(1));
        let failed = run.run(|| {
            let _held = zeros(1)?;
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
            #[allow(unreachable_code)]
            Ok(())
        });
        let error = failed.expect_err("it does not end").to_string();
        assert!(error.contains("it did not end within 1 s"), "{error}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_cuda_says_what_is_missing() {
    let error = DryRun::on("RTX 4090")
        .run(|| zeros(1))
        .expect_err("there is no device");
    assert!(error.is_testing());
    assert!(
        error.to_string().contains("build with the feature `cuda`"),
        "{error}"
    );
}

#[test]
fn a_test_without_a_name() {
    let run = DryRun::on("RTX 4090").time_limit(Duration::from_secs(60));
    let unnamed = std::thread::spawn(move || run.run(|| zeros(1)));
    let error = unnamed
        .join()
        .expect("it does not panic")
        .expect_err("which test is it?");
    assert!(error.to_string().contains("`DryRun::test`"), "{error}");
}
