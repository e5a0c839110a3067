//! `nn::audit`: which Vars a loss reaches, and how its report reads.

mod models;
mod operations;

use candle_core::{DType, Device, IndexOp, Tensor, Var};
use candle_headroom::error::UnreachedParameters;
use candle_headroom::nn::{Audit, Received, audit};
use candle_headroom::testing::out_of_memory;
use candle_headroom::{Error, Result};
use candle_nn::{Init, Module, ModuleT, VarBuilder, VarMap, batch_norm, linear, linear_no_bias};

use crate::support::{flat, vars};

/// A Var of these values, by name.
fn put(varmap: &VarMap, name: &str, values: &[f64], dtype: DType) -> Tensor {
    let values = Tensor::new(values, &Device::Cpu)
        .unwrap()
        .to_dtype(dtype)
        .unwrap();
    let var = Var::from_tensor(&values).unwrap();
    varmap
        .data()
        .lock()
        .unwrap()
        .insert(name.to_owned(), var.clone());
    var.into_inner()
}

fn received(report: &Audit) -> Vec<(&str, Received)> {
    let vars = report.vars.iter();
    vars.map(|var| (var.name.as_str(), var.received)).collect()
}

#[test]
fn each_var_is_told_apart() {
    let varmap = VarMap::new();
    let ones = [1., 1.];
    let finite = put(&varmap, "finite", &ones, DType::F32);
    let dead = put(&varmap, "dead", &[-1., -2.], DType::F32);
    let infinite = put(&varmap, "infinite", &ones, DType::F32);
    let nan = put(&varmap, "nan", &[0., 1.], DType::F32);
    let detached = put(&varmap, "detached", &ones, DType::F32);
    put(&varmap, "unused", &ones, DType::F32);
    put(&varmap, "bn.running_mean", &ones, DType::F32);
    put(&varmap, "bn.num_batches_tracked", &[7.], DType::F32);
    put(&varmap, "steps", &[7.], DType::I64); // an integer cannot be trained
    let report = audit(&varmap, || {
        let parts = [
            finite.sqr()?,
            dead.relu()?,
            (&infinite * f64::INFINITY)?,
            // Zero times the derivative of a square root at 0, which is infinite.
            nan.sqrt()?.sqr()?,
            detached.detach(),
        ];
        Tensor::stack(&parts, 0)?.sum_all()
    });
    let report = report.arrivals().unwrap();
    assert_eq!(
        received(&report),
        [
            ("bn.num_batches_tracked", Received::Statistic),
            ("bn.running_mean", Received::Statistic),
            ("dead", Received::Zeros),
            ("detached", Received::Nothing),
            ("finite", Received::Finite),
            ("infinite", Received::NotFinite),
            ("nan", Received::NotFinite),
            ("unused", Received::Nothing),
        ]
    );
    assert_eq!(report.count(Received::Nothing), 2);
    let norms: Vec<_> = report.vars.iter().map(|var| var.norm).collect();
    let norm = report.get("finite").unwrap().norm.unwrap();
    assert!((norm - 8f64.sqrt()).abs() < 1e-6, "{norm}"); // f32
    assert_eq!(
        norms,
        [None, None, Some(0.), None, Some(norm), None, None, None]
    );
    let error = Error::from(report.check().unwrap_err());
    let unreached: &UnreachedParameters = error.downcast_ref().expect("two Vars");
    assert_eq!((unreached.names.len(), unreached.trainable()), (2, 6));
    assert_eq!(unreached.updates, None);
}

/// Squares that are infinite or 0 in the gradient's type do not spoil its norm.
#[test]
fn norms_do_not_overflow() {
    for (dtype, value, tolerance) in [
        (DType::F64, 1e200, 1e-12),
        (DType::F64, 1e-200, 1e-12),
        (DType::F32, 1e30, 1e-5),
        (DType::F32, 1e-30, 1e-5),
        // The value itself is rounded to 11 bits, to 8 bits.
        (DType::F16, 6e4, 1e-3),
        (DType::F16, 1e-4, 1e-3),
        (DType::BF16, 1e30, 1e-2),
    ] {
        let varmap = VarMap::new();
        let w = put(&varmap, "w", &[1.; 9], dtype);
        let report = audit(&varmap, || (&w * value)?.sum_all())
            .arrivals()
            .unwrap();
        let norm = report.vars[0].norm.unwrap();
        assert!(
            (norm / (3. * value) - 1.).abs() < tolerance,
            "{dtype:?} {value}: {norm}"
        );
    }
}

#[test]
fn a_gradient_of_a_part_is_a_gradient() {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &[1., 2., 3.], DType::F32);
    let report = audit(&varmap, || w.i(1)?.affine(5., 0.))
        .arrivals()
        .unwrap();
    assert_eq!(
        (report.vars[0].received, report.vars[0].norm),
        (Received::Finite, Some(5.))
    );
    // No elements: nothing that could be wrong.
    let empty = put(&varmap, "empty", &[], DType::F32);
    let report = audit(&varmap, || (empty.sum_all()? + w.sum_all()?)?.sqr())
        .arrivals()
        .unwrap();
    assert_eq!(report.get("empty").unwrap().received, Received::Zeros);
}

/// Of no Var at all: a report, in which everything is unreached.
#[test]
fn a_loss_that_depends_on_nothing_is_reported() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    linear(3, 2, vb).unwrap();
    let loss = || Tensor::ones((), DType::F32, &Device::Cpu);
    let report = audit(&varmap, loss).arrivals().unwrap();
    assert_eq!(report.count(Received::Nothing), 2);
    let error = Error::from(report.check().unwrap_err());
    let unreached: &UnreachedParameters = error.downcast_ref().expect("two Vars");
    assert!(
        unreached
            .reasons()
            .iter()
            .any(|reason| reason.contains("other Vars"))
    );
    // No Vars at all is nothing that is unreached.
    assert!(
        audit(&VarMap::new(), loss)
            .arrivals()
            .unwrap()
            .check()
            .is_ok()
    );
}

#[test]
fn errors_of_the_closure_come_back() {
    let varmap = VarMap::new();
    let w = put(&varmap, "w", &[1., 2.], DType::F32);
    let error = audit(&varmap, || w.sqr()).arrivals();
    let error = Error::from(error.unwrap_err());
    assert!(
        error.is_loss()
            && error
                .to_string()
                .starts_with("the loss has shape [2]: reduce it"),
        "{error}"
    );
    assert_eq!(
        audit(&varmap, || w.sqr()?.sum_keepdim(0))
            .arrivals()
            .unwrap()
            .vars[0]
            .received,
        Received::Finite
    );
    let error = audit(&varmap, || Err(out_of_memory())).arrivals();
    let error = Error::from(error.unwrap_err());
    assert!(error.resource_exhausted().is_some(), "{error}");
    let error = audit(&varmap, || w.reshape(3)).arrivals();
    let error = Error::from(error.unwrap_err());
    assert!(matches!(&error, Error::Candle(_)), "{error}");
    let error = audit(&varmap, || Err(Error::external(std::fmt::Error).into())).arrivals();
    let error = Error::from(error.unwrap_err());
    assert!(error.downcast::<std::fmt::Error>().is_ok());
}

/// The closure may build the model.
#[test]
fn vars_that_the_closure_makes_are_audited() -> Result<()> {
    let varmap = VarMap::new();
    let x = Tensor::ones((5, 3), DType::F32, &Device::Cpu)?;
    let report = audit(&varmap, || {
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        linear(3, 2, vb)?.forward(&x)?.sqr()?.mean_all()
    });
    let report = report.arrivals()?;
    report.check()?;
    assert_eq!(report.vars.len(), 2);
    Ok(())
}

#[test]
fn it_changes_nothing() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let (norm, head) = (
        batch_norm(3, 1e-5, vb.pp("bn")).unwrap(),
        linear(3, 2, vb.pp("head")).unwrap(),
    );
    let values = || {
        vars(&varmap)
            .iter()
            .map(|var| flat(var))
            .collect::<Vec<_>>()
    };
    let before = values();
    let x = Tensor::arange(0f32, 15., &Device::Cpu)
        .unwrap()
        .reshape((5, 3))
        .unwrap();
    let forward = || head.forward(&norm.forward_t(&x, true)?)?.sqr()?.mean_all();
    let report = audit(&varmap, forward).arrivals().unwrap();
    report.check().unwrap();
    assert_eq!(report.count(Received::Statistic), 2);
    assert_eq!(values(), before);
    // With an error after the forward pass, and with a panic.
    audit(&varmap, || forward().and(Err(out_of_memory())))
        .arrivals()
        .unwrap_err();
    assert_eq!(values(), before);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        audit(&varmap, || {
            forward()?;
            panic!("in the closure")
        })
        .arrivals()
    }));
    assert!(panicked.is_err());
    assert_eq!(values(), before);
    forward().unwrap();
    assert_ne!(values(), before, "the forward pass does change them");
}

#[test]
fn exceptions_are_names_that_exist() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let head = linear_no_bias(3, 2, vb.pp("head")).unwrap();
    linear(3, 3, vb.pp("pooler.dense")).unwrap();
    vb.get_with_hints(3, "scale", Init::Const(1.)).unwrap();
    let x = Tensor::ones((5, 3), DType::F32, &Device::Cpu).unwrap();
    let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all())
        .arrivals()
        .unwrap();
    report.check_except(["pooler.*", "scale"]).unwrap();
    let error = Error::from(report.check_except(["pooler.*"]).unwrap_err());
    assert!(
        matches!(&error, Error::UnreachedParameters(unreached) if unreached.names == ["scale"]),
        "{error}"
    );
    let error = Error::from(report.check_except(["*", "poler.*"]).unwrap_err());
    assert!(
        error.is_parameter() && error.to_string().contains("matches `poler.*`"),
        "{error}"
    );
}

/// Whether a pattern matches the name of the only Var.
fn matches(pattern: &str, name: &str) -> bool {
    let varmap = VarMap::new();
    let w = put(&varmap, name, &[1.], DType::F32);
    let report = audit(&varmap, || w.sqr()?.sum_all()).arrivals().unwrap();
    report.check_except([pattern]).is_ok()
}

#[test]
fn a_star_stands_for_any_text() {
    for (pattern, name) in [
        ("a.b", "a.b"),
        ("*", ""),
        ("*", "a.b.c"),
        ("a.*", "a.b.c"),
        ("*.weight", "a.b.weight"),
        ("a.*.c", "a.b.b.c"),
        ("*a*a*", "aa"),
        ("**", "x"),
        ("layers.*.experts.*.w1", "layers.0.moe.experts.3.w1"),
    ] {
        assert!(matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [
        ("", "a"),
        ("a", "ab"),
        ("a", "ba"),
        ("*a*a*", "a"),
        ("a*a", "a"),
        ("ab*ba", "aba"),
        ("*.weight", "weight"),
        ("a.?", "a.b"),
    ] {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn statistics_are_known_by_the_last_part_of_a_name() {
    let varmap = VarMap::new();
    let statistics = ["running_mean", "bn.running_var", "a.b.num_batches_tracked"];
    let others = ["bn.weight", "running_mean.weight", "my_running_mean"];
    for name in statistics.iter().chain(&others) {
        put(&varmap, name, &[1.], DType::F32);
    }
    let loss = || Tensor::ones((), DType::F32, &Device::Cpu);
    let report = audit(&varmap, loss).arrivals().unwrap();
    for (names, received) in [
        (statistics, Received::Statistic),
        (others, Received::Nothing),
    ] {
        for name in names {
            assert_eq!(report.get(name).unwrap().received, received, "{name}");
        }
    }
}

/// Two layers whose first parts are cut off.
fn layered() -> Audit {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
    let layers = (0..2).map(|i| {
        let vb = vb.pp(format!("layers.{i}"));
        [
            linear(2, 2, vb.pp("attention")).unwrap(),
            linear(2, 2, vb.pp("mlp")).unwrap(),
        ]
    });
    let layers: Vec<_> = layers.collect();
    let head = vb
        .get_with_hints((2, 2), "head.weight", Init::Const(0.5))
        .unwrap();
    batch_norm(2, 1e-5, vb.pp("norm")).unwrap();
    let loss = || {
        let mut y = x.clone();
        for [attention, mlp] in &layers {
            let hidden = mlp.forward(&(&y + attention.forward(&y)?.detach())?)?;
            y = (&y + (hidden.abs()? + 1.)?.neg()?.relu()?)?;
        }
        (y.matmul(&head)? * 4.)?.sum_all()
    };
    audit(&varmap, loss).arrivals().unwrap()
}

#[test]
fn a_report_is_grouped_with_what_is_wrong_first() {
    let report = layered();
    assert_eq!(
        report.to_string(),
        "\
13 Vars: no gradient 6, all zeros 4, finite 1, statistic 2
no gradient
  layers.*: attention.bias, attention.weight (4 of 8)
  norm: bias, weight (2 of 4)
all zeros
  layers.*: mlp.bias, mlp.weight (4 of 8)
finite
  head: weight (1 of 1), norm 8.000e0
statistic
  norm: running_mean, running_var (2 of 4)"
    );
    let long = format!("{report:#}");
    assert!(long.starts_with("13 Vars: no gradient 6, "), "{long}");
    assert!(
        long.contains("\n  layers.0.attention.weight  [2, 2]\n"),
        "{long}"
    );
    assert!(
        long.contains("\n  layers.1.mlp.bias          [2]     norm 0.000e0\n"),
        "{long}"
    );
    assert!(
        long.contains("\n  head.weight                [2, 2]  norm 8.000e0\n"),
        "{long}"
    );
    assert_eq!(long.lines().count(), 1 + 4 + 13);
    assert_eq!(Audit::default().to_string(), "0 Vars");
}

#[test]
fn a_report_is_saved_and_read() {
    let mut report = layered();
    let json = serde_json::to_string(&report).unwrap();
    assert!(
        json.contains(r#"{"name":"head.weight","shape":[2,2],"received":"finite","norm":8.0}"#),
        "{json}"
    );
    assert_eq!(serde_json::from_str::<Audit>(&json).unwrap(), report);
    // A report that is not in order reads as well.
    report.vars.reverse();
    assert!(report.to_string().contains("norm 8.000e0"));
}
