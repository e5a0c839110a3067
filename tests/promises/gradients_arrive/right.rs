//! A gradient that arrives and is wrong is found, by name. `tests/nn/slopes` tries each operation of candle's.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{AuditError, Received, audit};
use candle_headroom::{Error, nn};
use candle_nn::{Module, VarBuilder, VarMap, linear};

use super::{Cut, Model, data};
use crate::support::{settle, snapshot, vars, wave};

/// candle's `max_pool2d` gives four times too little, which is no error, and so does its update.
#[test]
fn a_wrong_gradient_is_found_by_name() -> Result<()> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let conv = nn::conv2d(1, 3, 3, Default::default(), vb.pp("conv"))?;
    let head = linear(12, 4, vb.pp("head"))?;
    settle(&varmap);
    let x = wave(5 * 36, 2, DType::F32)?.reshape((5, 1, 6, 6))?;
    let before = snapshot(&vars(&varmap));
    let loss = |pool: fn(&Tensor) -> Result<Tensor>| {
        let y = pool(&conv.forward(&x)?)?.flatten_from(1)?;
        head.forward(&y)?.sqr()?.mean_all()
    };

    let report = audit(&varmap, || loss(|x| x.max_pool2d(2)))
        .slopes()
        .unwrap();
    let error = Error::from(report.check().unwrap_err());
    let wrong = ["conv.bias", "conv.weight"].map(str::to_owned).to_vec();
    assert!(error.is_loss(), "{error}");
    assert!(
        matches!(error.downcast_ref(), Some(AuditError::Wrong(names)) if *names == wrong),
        "{error}"
    );
    for var in report.of(Received::Wrong) {
        let factor = var.slope.and_then(|slope| slope.factor()).unwrap();
        assert!((factor - 0.25).abs() < 0.01, "{report:#}");
    }
    assert_eq!(report.count(Received::Right), 2, "{report:#}");

    let report = audit(&varmap, || loss(|x| x.avg_pool2d(2)))
        .slopes()
        .unwrap();
    report.check().unwrap();
    assert_eq!(report.count(Received::Right), 4, "{report:#}");
    assert_eq!(snapshot(&vars(&varmap)), before);
    Ok(())
}

/// What the first update checks, the audit checks too, and the slopes of what arrives.
#[test]
fn what_arrives_is_right() {
    let model = Model::new();
    for cut in Cut::ALL.into_iter().chain([Cut::Nothing]) {
        let report = audit(&model.varmap, || model.loss(&data(6), cut));
        let report = report.slopes().unwrap();
        let unreached: Vec<_> = report.of(Received::Nothing).map(|var| &*var.name).collect();
        assert_eq!(unreached, cut.names(), "{cut:?}");
        assert_eq!(report.check().is_ok(), unreached.is_empty(), "{cut:?}");
        assert_eq!(report.count(Received::Wrong), 0, "{cut:?} {report:#}");
        assert!(report.count(Received::Right) >= 2, "{cut:?} {report:#}");
    }
}
