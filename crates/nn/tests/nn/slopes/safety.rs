//! Everything is as before: after success, after an error at each point, after a panic.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{
    self as nn, AuditError, Module, ModuleT, SecondRun, VarBuilder, VarMap, audit, is_recomputing,
    recompute,
};

use super::{bits, wave};

/// BatchNorm in training, a counter that each forward pass changes, and values whose bits are easily lost.
struct Model {
    varmap: VarMap,
    norm: nn::BatchNorm,
    head: nn::Linear,
    counter: Var,
    x: Tensor,
}

/// Fills Vars with values that depend only on their positions.
fn settle(varmap: &VarMap) -> Result<()> {
    let data = varmap.data().lock().expect("Vars");
    let mut vars: Vec<_> = data.iter().collect();
    vars.sort_by_key(|(name, _)| name.as_str());
    for (index, (_, var)) in vars.into_iter().enumerate() {
        let values = (wave(var.dims(), index)? * 0.3)?;
        var.set(&values.to_dtype(var.dtype())?)?;
    }
    Ok(())
}

impl Model {
    fn new() -> Result<Self> {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let norm = nn::batch_norm(3, 1e-5, vb.pp("norm"))?;
        let head = nn::linear(3, 2, vb.pp("head"))?;
        settle(&varmap)?;
        let counter = Var::new(&[7i64], &Device::Cpu)?;
        let mut data = varmap.data().lock().expect("Vars");
        data.insert("norm.num_batches_tracked".to_owned(), counter.clone());
        data.insert(
            "odd".to_owned(),
            Var::new(&[-0f32, f32::NAN, f32::MIN_POSITIVE / 3.], &Device::Cpu)?,
        );
        drop(data);
        Ok(Self {
            varmap,
            norm,
            head,
            counter,
            x: wave(&[5, 3], 2)?.to_dtype(DType::F32)?,
        })
    }

    fn loss(&self) -> Result<Tensor> {
        self.counter.set(&(self.counter.as_tensor() + 1.)?)?;
        // Only where the counter is restored, the loss is the same each time.
        let count: i64 = self.counter.to_vec1::<i64>()?[0];
        let y = self
            .norm
            .forward_t(&self.x, true)?
            .affine(count as f64, 0.)?;
        self.head.forward(&y)?.sqr()?.mean_all()
    }
}

#[test]
fn nothing_changes_whatever_happens() -> Result<()> {
    let model = Model::new()?;
    let before = bits(&model.varmap);
    let calls = Cell::new(0);
    let counted = || {
        calls.set(calls.get() + 1);
        model.loss()
    };
    audit(&model.varmap, counted).slopes().expect("slopes");
    assert_eq!(bits(&model.varmap), before);
    let all = calls.get();
    assert!(all > 20, "{all}");

    for fails in 1..=all {
        calls.set(0);
        let failing = || {
            calls.set(calls.get() + 1);
            let loss = model.loss()?;
            match calls.get() == fails {
                true => Err(candle_core::Error::Msg("no room in the cellar".to_owned())),
                false => Ok(loss),
            }
        };
        let error = audit(&model.varmap, failing).slopes().expect_err("no room");
        assert_eq!(error.to_string(), "no room in the cellar");
        assert_eq!((calls.get(), bits(&model.varmap)), (fails, before.clone()));

        calls.set(0);
        let panicking = || {
            calls.set(calls.get() + 1);
            let loss = model.loss()?;
            if calls.get() == fails {
                resume_unwind(Box::new("on purpose")); // prints nothing
            }
            Ok(loss)
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            audit(&model.varmap, panicking).slopes()
        }));
        assert!(panicked.is_err());
        assert_eq!((calls.get(), bits(&model.varmap)), (fails, before.clone()));
    }
    model.loss()?;
    assert_ne!(
        bits(&model.varmap),
        before,
        "the forward pass does change them"
    );
    Ok(())
}

/// In the backward passes: that of the arrivals, and that of the slopes.
#[test]
fn nothing_changes_where_a_backward_pass_fails() -> Result<()> {
    let model = Model::new()?;
    let before = bits(&model.varmap);
    for point in 0.. {
        let passed = Arc::new(AtomicUsize::new(0));
        let report = audit(&model.varmap, || {
            let passed = Arc::clone(&passed);
            recompute(&model.loss()?, move |loss| {
                match is_recomputing() && passed.fetch_add(1, Relaxed) == point {
                    true => Err(candle_core::Error::Msg("no room in the cellar".to_owned())),
                    false => loss.affine(1., 0.),
                }
            })
        });
        let report = report.slopes();
        assert_eq!(bits(&model.varmap), before, "{point}");
        match report {
            Ok(_) => {
                assert_eq!(point, 2);
                break;
            }
            Err(AuditError::Candle(error)) => assert!(SecondRun::of(&error).is_some(), "{error}"),
            Err(error) => panic!("{error}"),
        }
    }
    Ok(())
}

/// The closure may build the model.
#[test]
fn a_model_that_the_closure_builds() -> Result<()> {
    let varmap = VarMap::new();
    let x = wave(&[5, 3], 1)?.to_dtype(DType::F32)?;
    let report = audit(&varmap, || {
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        nn::linear(3, 2, vb)?.forward(&x)?.sqr()?.mean_all()
    });
    let report = report.slopes().expect("slopes");
    report.check().expect("right");
    assert_eq!(report.count(nn::Received::Right), 2);
    Ok(())
}
