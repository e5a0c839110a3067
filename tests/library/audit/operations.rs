//! `UnreachedParameters::WITHOUT_BACKWARD` is what candle does: each entry cuts gradients off, without an error.

use std::collections::BTreeSet;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom::error::UnreachedParameters;
use candle_headroom::nn::{Received, audit};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::kv_cache::{
    ConcatKvCache, InterleavedKvCache, KvCache, RotatingKvCache, ScatteredCacheBuilder,
};
use candle_nn::{VarMap, ops, rotary_emb};

use crate::support::wave;

const LEN: usize = 32;

type Operation = fn(&Tensor) -> Result<Tensor>;

/// Of a tensor of 1 × 2 × 3 × 32.
const OPERATIONS: [(&str, Operation); 18] = [
    ("softmax_last_dim", ops::softmax_last_dim),
    ("rms_norm", |x| ops::rms_norm(x, &ones()?, 1e-5)),
    ("layer_norm", |x| {
        ops::layer_norm(x, &ones()?, &ones()?, 1e-5)
    }),
    ("rope", |x| rotary_emb::rope(x, &angles()?, &angles()?)),
    ("rope_i", |x| rotary_emb::rope_i(x, &angles()?, &angles()?)),
    ("rope_thd", |x| {
        rotary_emb::rope_thd(x, &angles()?, &angles()?)
    }),
    ("flash_attn on the CPU", |x| {
        flash_attn::<f32>(x, x, x, 0.1, AttnMask::causal(), None, None)
    }),
    ("QMatMul", |x| {
        let weight = Tensor::ones((4, LEN), DType::F32, &Device::Cpu)?;
        QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?.forward(x)
    }),
    ("slice_set", |x| {
        let all = x.zeros_like()?;
        all.slice_set(&x.detach(), 2, 0)?;
        all.slice_set(x, 2, 0)?;
        Ok(all)
    }),
    ("scatter_set", |x| {
        let all = x.zeros_like()?;
        all.scatter_set(&indices(x)?, x, 2)?;
        Ok(all)
    }),
    ("scatter_add_set", |x| {
        let all = x.zeros_like()?;
        all.scatter_add_set(&indices(x)?, x, 2)?;
        Ok(all)
    }),
    ("KvCache", |x| Ok(KvCache::new(2, 8).append(x, x)?.0)),
    ("RotatingKvCache", |x| {
        Ok(RotatingKvCache::new(2, 8).append(x, x)?.0)
    }),
    ("ConcatKvCache", |x| {
        Ok(ConcatKvCache::new(2).append(x, x)?.0)
    }),
    ("ScatteredKvCache", |x| {
        let mut builder = ScatteredCacheBuilder::new(1, 8, DType::F32, &Device::Cpu)?;
        let places = builder.indices_and_mask(3, &[true])?;
        Ok(builder.make_cache(2, LEN)?.append(x, x, &places)?.0)
    }),
    ("InterleavedKvCache", |x| {
        InterleavedKvCache::new(LEN).append(x, x)
    }),
    ("RmsNorm", |x| {
        candle_nn::RmsNorm::new(ones()?, 1e-5).forward(x)
    }),
    ("LayerNorm", |x| {
        candle_nn::LayerNorm::new(ones()?, ones()?, 1e-5).forward(x)
    }),
];

fn ones() -> Result<Tensor> {
    Tensor::ones(LEN, DType::F32, &Device::Cpu)
}

fn indices(x: &Tensor) -> Result<Tensor> {
    Tensor::zeros(x.shape(), DType::U32, &Device::Cpu)
}

fn angles() -> Result<Tensor> {
    Tensor::ones((8, LEN / 2), DType::F32, &Device::Cpu)
}

#[test]
fn each_listed_operation_cuts_gradients_off() {
    let reached = |operation: Operation| {
        let varmap = VarMap::new();
        let values = wave(2 * 3 * LEN, 1, DType::F32).unwrap();
        let x = Var::from_tensor(&values.reshape((1, 2, 3, LEN)).unwrap()).unwrap();
        varmap
            .data()
            .lock()
            .unwrap()
            .insert("x".to_owned(), x.clone());
        let report = audit(&varmap, || operation(&x)?.sqr()?.sum_all())
            .arrivals()
            .unwrap();
        report.vars[0].received
    };
    for (name, operation) in OPERATIONS {
        assert_eq!(reached(operation), Received::Nothing, "{name}");
    }
    assert_eq!(reached(|x| ops::softmax(x, 3)), Received::Finite);
    // `sdpa` runs on Metal only.
    let tried = OPERATIONS.iter().map(|(name, _)| *name).chain(["sdpa"]);
    let listed = UnreachedParameters::WITHOUT_BACKWARD.iter().copied();
    assert_eq!(tried.collect::<BTreeSet<_>>(), listed.collect());
}
