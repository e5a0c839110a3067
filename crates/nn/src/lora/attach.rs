//! The adapters of a model that is being built on this thread.

use std::cell::RefCell;
use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarMap;

use super::{Adapter, Lora};
use crate::scope::OnDrop;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

struct Scope {
    lora: Lora,
    adapters: VarMap,
    /// The paths of all linear layers, in their order.
    paths: Vec<String>,
    made: BTreeMap<String, Adapter>,
}

impl Lora {
    /// Builds a model whose linear layers get adapters where a target names them. `build` makes the model; its layers look for their
    /// adapters by the path of their `VarBuilder`. Returns the model, and the adapters by the paths of their layers.
    ///
    /// The weights and biases of these layers are frozen, whatever `build` makes them of. Other parameters are trained if they are Vars:
    /// load a base as tensors.
    ///
    /// The parameters of an adapter are in `adapters`, for example as
    /// `base_model.model.layers.0.self_attn.q_proj.lora_A.weight` for the path `layers.0.self_attn.q_proj`. Those that are there
    /// already are taken; new ones change nothing at first: A is uniform in ±1/√inputs, and B is 0. Set them afterwards to load an
    /// adapter.
    ///
    /// An example is at [`Lora`].
    ///
    /// # Errors
    /// If an option is out of range, if a target names no linear layer, and those of `build`. Adapters may be in the map then.
    pub fn attach<T>(
        &self,
        adapters: &VarMap,
        build: impl FnOnce() -> Result<T>,
    ) -> Result<(T, BTreeMap<String, Adapter>)> {
        self.check()?;
        let mut outer = SCOPE.replace(Some(Scope {
            lora: self.clone(),
            adapters: adapters.clone(),
            paths: Vec::new(),
            made: BTreeMap::new(),
        }));
        let mut own = None;
        let model = {
            let _restored = OnDrop(|| own = SCOPE.replace(outer.take()));
            build()?
        };
        let (paths, made) = own.map_or_else(Default::default, |own| (own.paths, own.made));
        self.choose(&paths.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok((model, made))
    }
}

/// The adapter of a linear layer at `path`, within [`Lora::attach`]; `None` elsewhere, and where no target names it. For layers of your own,
/// such as those with quantized weights, which apply it by [`Adapter::forward`].
///
/// `shape` is that of the weight (outputs, inputs), of this type and on this device. DoRA takes the weight itself, once.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_headroom_nn::lora::{self, Lora};
/// use candle_headroom_nn::quantized::{GgmlDType, QMatMul, QTensor};
/// use candle_headroom_nn::VarMap;
///
/// let weight = Tensor::ones((64, 32), DType::F32, &Device::Cpu)?; // [outputs, inputs]
/// let frozen = QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?)?;
/// let shape = (64, 32);
/// let (adapter, _) = Lora::default().attach(&VarMap::new(), || {
///     lora::at("layer", shape, DType::F32, &Device::Cpu, || Ok(frozen.dequantize_f16()?.to_dtype(DType::F32)?))
/// })?;
/// let x = Tensor::ones((1, 32), DType::F32, &Device::Cpu)?;
/// let y = adapter.expect("all layers have one").forward(&x, None, |x, _| frozen.forward(x))?;
/// assert_eq!(y.to_vec2::<f32>()?, frozen.forward(&x)?.to_vec2::<f32>()?); // a new one changes nothing
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If the `VarMap` has parameters of other shapes under these names, and those of `weight`.
pub fn at(
    path: &str,
    shape: (usize, usize),
    dtype: DType,
    device: &Device,
    weight: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Adapter>> {
    let found = SCOPE.with_borrow_mut(|scope| {
        let scope = scope.as_mut()?;
        scope.paths.push(path.to_owned());
        let applies = scope.lora.applies_to(path);
        applies.then(|| (scope.lora.clone(), scope.adapters.clone()))
    });
    let Some((lora, vars)) = found else {
        return Ok(None);
    };
    let adapter = Adapter::new(&lora, &vars, path, shape, dtype, device, weight)?;
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            scope.made.insert(path.to_owned(), adapter.clone());
        }
    });
    Ok(Some(adapter))
}
