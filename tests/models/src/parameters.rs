//! Parameters whose first values depend on their names only, so that they are the same in every variant.

use crate::inputs::device;
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A `VarMap` that fills each new Var from a generator seeded by its name.
#[derive(Clone, Default)]
pub struct Parameters {
    vars: Arc<Mutex<BTreeMap<String, Var>>>,
    /// What to add to a Var of this name when it is made.
    shifts: Arc<BTreeMap<String, Tensor>>,
    absent: &'static [&'static str],
}

impl Parameters {
    /// Of a model that has no tensors whose names begin so.
    pub fn without(absent: &'static [&'static str]) -> Self {
        Self {
            absent,
            ..Self::default()
        }
    }

    /// The same parameters, moved.
    pub fn shifted(self, shifts: BTreeMap<String, Tensor>) -> Self {
        Self {
            shifts: Arc::new(shifts),
            ..self
        }
    }

    pub fn builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, device().clone())
    }

    pub fn vars(&self) -> BTreeMap<String, Var> {
        self.vars.lock().unwrap().clone()
    }
}

impl SimpleBackend for Parameters {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        _: &Device,
    ) -> Result<Tensor> {
        if self.absent.iter().any(|start| name.starts_with(start)) {
            candle_core::bail!("there is no tensor `{name}`");
        }
        let mut vars = self.vars.lock().unwrap();
        if let Some(var) = vars.get(name) {
            if var.shape() != &shape {
                candle_core::bail!(
                    "`{name}` is asked for as {:?} and as {shape:?}",
                    var.shape()
                );
            }
            return Ok(var.as_tensor().clone());
        }
        let mut value = first_value(&shape, name, init)?.to_dtype(dtype)?;
        if let Some(shift) = self.shifts.get(name) {
            value = (value + shift)?;
        }
        let var = Var::from_tensor(&value)?;
        let tensor = var.as_tensor().clone();
        vars.insert(name.to_string(), var);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        match self.vars.lock().unwrap().get(name) {
            Some(var) => Ok(var.as_tensor().clone()),
            None => candle_core::bail!("`{name}` is asked for without a shape"),
        }
    }

    /// Also what models look for in a file of weights, and fill with noise or a constant if it is not there.
    fn contains_tensor(&self, name: &str) -> bool {
        ["class_embedding", "logit_scale"]
            .iter()
            .any(|end| name.ends_with(end))
            || self.vars.lock().unwrap().contains_key(name)
    }
}

/// Weights have the spread of Xavier's initialization, scales are near 1 and positive, and biases near 0, but never the same.
fn first_value(shape: &Shape, name: &str, init: Init) -> Result<Tensor> {
    let dims = shape.dims();
    let (centre, spread) = match (dims, init) {
        // So that the sums of residual networks do not grow from layer to layer.
        _ if name.ends_with("running_var") => (4.0, 1.0),
        ([] | [_], Init::Const(value)) if value != 0.0 => (value, 0.1),
        ([_], _)
            if ["weight", "gamma", "scale"]
                .iter()
                .any(|end| name.ends_with(end)) =>
        {
            (1.0, 0.1)
        }
        ([] | [_], _) => (0.0, 0.1),
        _ => (
            0.0,
            (3.0 / dims[1..].iter().product::<usize>() as f64).sqrt(),
        ),
    };
    let numbers = Numbers::new(name).map(|unit| (centre + spread * unit) as f32);
    Tensor::from_iter(numbers.take(shape.elem_count()), device())?.reshape(shape)
}

/// Uniform in -1..1 (splitmix64).
pub struct Numbers(u64);

impl Numbers {
    /// Seeded by FNV-1a of the name.
    pub fn new(name: &str) -> Self {
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3)
        }))
    }
}

impl Iterator for Numbers {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    }
}
