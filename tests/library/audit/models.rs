//! Models whose gradients are right: `slopes()` refuses none.

use candle_core::{D, DType, Device, IndexOp, Result, Tensor, Var};
use candle_headroom::nn::{
    self, Audit, BatchNorm, Conv2d, Dropout, Linear, Module, ModuleT, Received, VarBuilder, VarMap,
    audit,
};

use crate::support::layered::{Layered, TIME, TOKENS};
use crate::support::transformer::{Config, Transformer};
use crate::support::{self, ConvNet, Mlp, settle};

/// A map of a model's Vars, which are named for their places, and its running statistics.
fn map_of(vars: Vec<Var>, statistics: [&Tensor; 2]) -> VarMap {
    let varmap = VarMap::new();
    let mut data = varmap.data().lock().expect("Vars");
    data.extend(
        vars.into_iter()
            .enumerate()
            .map(|(place, var)| (place.to_string(), var)),
    );
    for (name, tensor) in ["running_mean", "running_var"].into_iter().zip(statistics) {
        let var = Var::from_tensor(tensor).expect("a Var");
        data.insert(name.to_owned(), var);
    }
    drop(data);
    varmap
}

fn names(audit: &Audit, received: Received) -> Vec<&str> {
    audit.of(received).map(|var| var.name.as_str()).collect()
}

/// The bits of all Vars, by name.
fn bits(varmap: &VarMap) -> Vec<(String, Vec<u8>)> {
    let data = varmap.data().lock().expect("Vars");
    let bits = data.iter().map(|(name, var)| {
        let mut bytes = Vec::new();
        var.as_tensor().write_bytes(&mut bytes).expect("bytes");
        (name.clone(), bytes)
    });
    let mut bits: Vec<_> = bits.collect();
    bits.sort();
    bits
}

/// Numbers between -1 and 1.
fn wave(dims: &[usize], phase: usize) -> Result<Tensor> {
    support::wave(dims.iter().product(), phase, DType::F64)?.reshape(dims)
}

/// Asserts that no gradient is wrong, nor undecided but for a few in bf16, in any place nearby and for any directions, and returns the first report.
fn is_right(what: &str, varmap: &VarMap, mut loss: impl FnMut() -> Result<Tensor>) -> Audit {
    let before = bits(varmap);
    let mut reports = (0..6).map(|seed| {
        let report = audit(varmap, &mut loss).seed(seed).slopes();
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(bits(varmap), before, "{what}");
        let checked = report.check();
        checked.unwrap_or_else(|error| panic!("{what} {seed}: {error} {report:#}"));
        // A bf16 loss is so coarse that a few kinks look like noise, and noise like kinks.
        let undecided = names(&report, Received::Undecided).len();
        let most = if what == "BF16" { 2 } else { 0 };
        assert!(undecided <= most, "{what} {seed}: {report:#}");
        report
    });
    let reports: Vec<_> = reports.by_ref().collect();
    reports.into_iter().next().expect("a report")
}

/// Asserts that all are right, but for those that have no effect.
fn all_are_right(report: &Audit, without_effect: &[&str], right: usize) {
    assert_eq!(
        names(report, Received::TooSmall),
        without_effect,
        "{report:#}"
    );
    assert_eq!(report.count(Received::Right), right, "{report:#}");
}

#[test]
fn a_perceptron() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let model = Mlp::new(dtype);
        let (x, y) = Mlp::data(16, dtype);
        let report = is_right(&format!("{dtype:?}"), &model.varmap, || {
            let wide = match dtype {
                DType::F64 => DType::F64,
                _ => DType::F32,
            };
            let off = (model.forward(&x)?.to_dtype(wide)? - y.to_dtype(wide)?)?;
            off.sqr()?.sum(1)?.mean_all()
        });
        all_are_right(&report, &[], 4);
    }
}

/// The bias before a BatchNorm has no effect.
#[test]
fn convolutions_with_candles_batch_norm() {
    let model = ConvNet::new();
    let (x, y) = ConvNet::data(8);
    let statistics = [model.norm.running_mean(), model.norm.running_var()];
    let varmap = map_of(model.trained(), statistics);
    let report = is_right("ConvNet", &varmap, || model.loss(&x, &y));
    all_are_right(&report, &["0"], 5);
}

#[test]
fn each_kind_of_layer() -> Result<()> {
    let model = Layered::new(&Device::Cpu)?;
    let samples = 6;
    let tokens = (0..samples * TIME).map(|i| (i * 7 % TOKENS) as u32);
    let tokens = Tensor::from_iter(tokens, &Device::Cpu)?.reshape((samples, TIME))?;
    let statistics = [
        model.statistics.running_mean(),
        model.statistics.running_var(),
    ];
    let varmap = map_of(model.trained(), statistics);
    let report = is_right("layers", &varmap, || model.loss(&tokens, &tokens));
    // A bias before a normalization.
    all_are_right(&report, &["0"], 18);
    Ok(())
}

#[test]
fn a_transformer() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let varmap = VarMap::new();
        let config = Config {
            context: 8,
            width: 16,
            heads: 2,
            layers: 2,
        };
        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let model = Transformer::new(config, vb)?;
        settle(&varmap);
        let bytes = (0..4 * 8).map(|i| (i * 37 % 256) as u32);
        let bytes = Tensor::from_iter(bytes, &Device::Cpu)?.reshape((4, 8))?;
        let next = bytes.i((.., 1..))?.contiguous()?;
        let bytes = bytes.i((.., ..7))?.contiguous()?;
        let report = is_right(&format!("{dtype:?}"), &varmap, || model.loss(&bytes, &next));
        match dtype {
            DType::F32 => all_are_right(&report, &[], 30),
            // Three digits resolve those with the largest gradients.
            _ => assert!(report.count(Received::Right) >= 8, "{report:#}"),
        }
    }
    Ok(())
}

/// Convolutions, BatchNorm in training, dropout, pooling.
struct Picture {
    conv: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    dropout: Dropout,
    head: Linear,
}

impl Picture {
    fn new(vb: VarBuilder) -> Result<Self> {
        let config = nn::Conv2dConfig {
            padding: 1,
            ..Default::default()
        };
        Ok(Self {
            conv: nn::conv2d_no_bias(2, 6, 3, config, vb.pp("conv"))?,
            norm: nn::batch_norm(6, 1e-5, vb.pp("norm"))?,
            second: nn::conv2d(6, 6, 3, config, vb.pp("second"))?,
            dropout: Dropout::new(0.3),
            head: nn::linear(6, 5, vb.pp("head"))?,
        })
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward_t(&self.conv.forward(x)?, true)?.relu()?;
        let x = self.second.forward(&x)?.relu()?;
        let x = self
            .dropout
            .forward(&x.mean((D::Minus1, D::Minus2))?, true)?;
        let scores = self.head.forward(&x)?;
        match scores.dtype() {
            DType::BF16 => nn::loss::cross_entropy(&scores.to_dtype(DType::F32)?, y),
            _ => nn::loss::cross_entropy(&scores, y),
        }
    }
}

#[test]
fn convolutions_with_batch_norm_and_dropout() -> Result<()> {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let varmap = VarMap::new();
        let model = Picture::new(VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu))?;
        settle(&varmap);
        let x = wave(&[6, 2, 8, 8], 3)?.to_dtype(dtype)?;
        let y = Tensor::new(&[0u32, 1, 2, 3, 4, 0], &Device::Cpu)?;
        let report = is_right(&format!("{dtype:?}"), &varmap, || model.loss(&x, &y));
        match dtype {
            DType::BF16 => assert!(report.count(Received::Right) >= 1, "{report:#}"),
            _ => all_are_right(&report, &[], 7),
        }
    }
    Ok(())
}
