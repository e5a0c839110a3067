//! What is undecided, too small, or not measured.

use candle_core::{DType, Result};
use candle_headroom_nn::{self as nn, Audit, AuditError, Received, audit};
use candle_nn::VarMap;

use super::{names, on_cpu, put, wave};

/// The second element is so much smaller than the first that every step of the Var passes the kink.
#[test]
fn a_kink_is_undecided() -> Result<()> {
    for dtype in [DType::F64, DType::F32] {
        let varmap = VarMap::new();
        let kinked = put(&varmap, "kinked", &on_cpu(&[3., 1e-9, -1e-9, 2e-9]), dtype)?;
        let smooth = put(&varmap, "smooth", &on_cpu(&[1., 2.]), dtype)?;
        let report = audit(&varmap, || {
            kinked.abs()?.sum_all()? + smooth.exp()?.sum_all()?
        })
        .slopes()?;
        assert_eq!(
            names(&report, Received::Undecided),
            ["kinked"],
            "{report:#}"
        );
        assert_eq!(names(&report, Received::Right), ["smooth"], "{report:#}");
        report.check()?;
        assert!(
            report
                .to_string()
                .starts_with("2 Vars: undecided 1, right 1\nundecided\n  kinked  [4]  norm "),
            "{report}"
        );
    }
    Ok(())
}

/// Many kinks near the point: a smaller step passes fewer.
#[test]
fn many_kinks_are_right() -> Result<()> {
    for (dtype, units) in [(DType::F64, 2000), (DType::F32, 2000)] {
        let varmap = VarMap::new();
        let weight = put(&varmap, "weight", &wave(&[4, units], 1)?, dtype)?;
        let head = put(&varmap, "head", &(wave(&[units, 1], 2)? * 0.1)?, dtype)?;
        let x = wave(&[8, 4], 3)?.to_dtype(dtype)?;
        let report = audit(&varmap, || {
            x.matmul(&weight)?.relu()?.matmul(&head)?.sqr()?.mean_all()
        });
        let report = report.slopes()?;
        assert_eq!(report.count(Received::Right), 2, "{report:#}");
    }
    Ok(())
}

/// A weight and its second name, one that a BatchNorm-like division takes away, one that is dead, one with zeros for a gradient.
#[test]
fn what_has_no_effect_is_too_small() -> Result<()> {
    let varmap = VarMap::new();
    let x = wave(&[7, 3], 1)?.to_dtype(DType::F32)?;
    let weight = put(&varmap, "weight", &wave(&[3, 3], 2)?, DType::F32)?;
    let var = varmap.data().lock().expect("Vars")["weight"].clone();
    varmap
        .data()
        .lock()
        .expect("Vars")
        .insert("tied".to_owned(), var);
    let shift = put(&varmap, "shift", &on_cpu(&[0.3, 0.2, 0.1]), DType::F32)?;
    let dead = put(&varmap, "dead", &on_cpu(&[-1., -2.]), DType::F32)?;
    put(&varmap, "unused", &on_cpu(&[1.]), DType::F32)?;
    put(&varmap, "empty", &on_cpu(&[]), DType::F32)?;
    let report = audit(&varmap, || {
        let y = x.matmul(&weight)?.broadcast_add(&shift)?;
        // Without the mean over samples, the shift has no effect.
        let y = y.broadcast_sub(&y.mean_keepdim(0)?)?;
        let y = y.matmul(&weight)?.tanh()?;
        y.sqr()?.mean_all()? + dead.relu()?.sum_all()?
    });
    let report = report.slopes()?;
    assert_eq!(names(&report, Received::Right), ["tied"], "{report:#}");
    assert_eq!(names(&report, Received::TooSmall), ["shift"], "{report:#}");
    assert_eq!(names(&report, Received::Zeros), ["dead"], "{report:#}");
    // It is measured under the first of its names.
    assert_eq!(names(&report, Received::Finite), ["weight"], "{report:#}");
    assert_eq!(report.get("empty").unwrap().slope, None);
    assert_eq!(report.count(Received::Nothing), 2);
    report.check_except(["unused", "empty"])?;
    assert!(
        report.to_string().starts_with(
            "6 Vars: no gradient 2, all zeros 1, too small to measure 1, finite 1, right 1\n"
        ),
        "{report}"
    );
    Ok(())
}

/// Half of what the loss depends on is cut off: it arrives, and is wrong.
#[test]
fn a_path_that_is_cut_off_is_wrong() -> Result<()> {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &wave(&[4], 1)?, DType::F32)?;
    let report = audit(&varmap, || (w.exp()? * w.detach())?.sum_all()).slopes()?;
    assert_eq!(names(&report, Received::Wrong), ["w"]);
    let error = report.check().unwrap_err();
    assert!(
        matches!(&error, AuditError::Wrong(names) if *names == ["w"]),
        "{error}"
    );
    assert!(error.to_string().contains("`w`"), "{error}");
    Ok(())
}

/// A copy of a parameter that was made once has a gradient, and no effect.
#[test]
fn a_stale_copy_is_wrong() -> Result<()> {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &wave(&[3, 4], 1)?, DType::F32)?;
    let stale = w.t()?.contiguous()?;
    let report = audit(&varmap, || stale.sqr()?.sum_all()).slopes()?;
    assert_eq!(names(&report, Received::Wrong), ["w"], "{report:#}");
    assert_eq!(report.get("w").unwrap().slope.unwrap().factor(), None);
    Ok(())
}

#[test]
fn a_loss_that_is_not_finite_is_undecided() -> Result<()> {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &on_cpu(&[1., 2.]), DType::F32)?;
    let infinite = put(
        &varmap,
        "infinite",
        &on_cpu(&[f64::INFINITY, 1.]),
        DType::F32,
    )?;
    let report = audit(&varmap, || w.sqr()?.sum_all()? + infinite.sum_all()?).slopes()?;
    assert_eq!(
        names(&report, Received::Undecided),
        ["infinite", "w"],
        "{report:#}"
    );
    let json = serde_json::to_string(&report).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Audit>(&json).expect("a report"),
        report
    );
    Ok(())
}

#[test]
fn randomness_is_frozen_or_refused() -> Result<()> {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &wave(&[4, 8], 1)?, DType::F32)?;
    let x = wave(&[6, 4], 2)?.to_dtype(DType::F32)?;
    let ours = nn::Dropout::new(0.5);
    let loss = || ours.forward(&x.matmul(&w)?, true)?.sqr()?.mean_all();
    for seed in 0..3 {
        let report = audit(&varmap, loss).seed(seed).slopes()?;
        assert_eq!(names(&report, Received::Right), ["w"], "{report:#}");
        assert_eq!(report, audit(&varmap, loss).seed(seed).slopes()?);
    }
    let before = super::bits(&varmap);
    let theirs = candle_nn::Dropout::new(0.5);
    let error = audit(&varmap, || {
        theirs.forward(&x.matmul(&w)?, true)?.sqr()?.mean_all()
    });
    let error = error.slopes().unwrap_err();
    assert!(matches!(&error, AuditError::NotRepeatable(..)), "{error}");
    assert!(error.to_string().contains("nn::Dropout"), "{error}");
    assert_eq!(super::bits(&varmap), before);
    Ok(())
}

#[test]
fn a_report_with_slopes_reads_well() -> Result<()> {
    let varmap = VarMap::new();
    let a = put(&varmap, "a.weight", &wave(&[3, 4], 1)?, DType::F32)?;
    let b = put(&varmap, "b.weight", &wave(&[4, 2], 2)?, DType::F32)?;
    let x = wave(&[6, 3], 2)?.to_dtype(DType::F32)?;
    let report = audit(&varmap, || {
        x.matmul(&a)?.tanh()?.matmul(&b)?.sqr()?.mean_all()
    })
    .slopes()?;
    report.check()?;
    let text = report.to_string();
    assert!(
        text.starts_with("2 Vars: right 2\nright\n  a: weight (1 of 1), norm "),
        "{text}"
    );
    let text = format!("{report:#}");
    assert!(
        text.contains(", measured ") && text.contains(", within "),
        "{text}"
    );
    assert_eq!(text.lines().count(), 4, "{text}");
    // The claimed slope along one Var's gradient is the gradient's norm nearby.
    let report = audit(&varmap, || {
        x.matmul(&a)?.detach().matmul(&b)?.sqr()?.mean_all()
    })
    .slopes()?;
    let var = report.get("b.weight").unwrap();
    let (norm, claimed) = (var.norm.unwrap(), var.slope.unwrap().claimed);
    assert!((claimed / norm - 1.).abs() < 0.05, "{claimed} {norm}");
    Ok(())
}
