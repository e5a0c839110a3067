//! A small model with each kind of layer of `candle_headroom::nn`, in regions that may be recomputed.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{
    self, Activation, Attention, BatchNorm, Conv1d, Dropout, Embedding, GroupNorm, LayerNorm,
    Linear, Module, ModuleT, RmsNorm, VarBuilder, VarMap, recompute,
};

use super::settle;

pub const TOKENS: usize = 16;
pub const TIME: usize = 4;
const WIDTH: usize = 8;
const HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;

#[derive(Clone)]
pub struct Layered {
    pub vars: Vec<Var>,
    pub statistics: BatchNorm,
    tokens: Embedding,
    norm: RmsNorm,
    qkv: Linear,
    out: Linear,
    hidden_norm: LayerNorm,
    gate_up: Linear,
    down: Linear,
    channels: GroupNorm,
    conv: Conv1d,
    gate: Linear,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Layered {
    pub fn new(device: &Device) -> Result<Self> {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
        let positions = (0..TIME * HEAD / 2).map(|i| i as f32 / 3.);
        let angles = Tensor::from_iter(positions, device)?.reshape((TIME, HEAD / 2))?;
        let mut model = Self {
            vars: Vec::new(),
            statistics: nn::batch_norm(WIDTH, 1e-5, vb.pp("statistics"))?,
            tokens: nn::embedding(TOKENS, WIDTH, vb.pp("tokens"))?,
            norm: nn::rms_norm(WIDTH, 1e-5, vb.pp("norm"))?,
            // A key head for both query heads.
            qkv: nn::linear_no_bias(WIDTH, WIDTH + 2 * HEAD, vb.pp("qkv"))?,
            out: nn::linear(WIDTH, WIDTH, vb.pp("out"))?,
            hidden_norm: nn::layer_norm(WIDTH, 1e-5, vb.pp("hidden_norm"))?,
            gate_up: nn::linear(WIDTH, 4 * WIDTH, vb.pp("gate_up"))?,
            down: nn::linear_no_bias(2 * WIDTH, WIDTH, vb.pp("down"))?,
            channels: nn::group_norm(2, WIDTH, 1e-5, vb.pp("channels"))?,
            conv: nn::conv1d_no_bias(WIDTH, WIDTH, 1, Default::default(), vb.pp("conv"))?,
            gate: nn::linear(WIDTH, WIDTH, vb.pp("gate"))?,
            head: nn::linear(WIDTH, TOKENS, vb.pp("head"))?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        };
        model.vars = settle(&varmap);
        let ones = Tensor::ones(WIDTH, DType::F32, device)?;
        Var::from_tensor(model.statistics.running_var())?.set(&ones)?;
        Ok(model)
    }

    /// The Vars that have gradients: not the running statistics.
    pub fn trained(&self) -> Vec<Var> {
        let statistics = [
            self.statistics.running_mean(),
            self.statistics.running_var(),
        ];
        let trained = |var: &&Var| statistics.iter().all(|other| other.id() != var.id());
        self.vars.iter().filter(trained).cloned().collect()
    }

    /// The mean loss of `(samples, TIME)` tokens.
    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let x = self.tokens.forward(x)?;
        let model = self.clone();
        let (x, pictures) = recompute(&x, move |x| {
            let inner = model.clone();
            let x = recompute(x, move |x| inner.block(x))?;
            Ok((x.clone(), model.pictures(&x)?))
        })?;
        let x = (x + pictures)?;
        let gate = nn::ops::softmax_last_dim(&self.gate.forward(&x)?)?;
        let gate = (gate - nn::ops::log_softmax(&x, D::Minus1)?)?;
        let scores = self.head.forward(&(x * nn::ops::sigmoid(&gate)?)?)?;
        nn::loss::cross_entropy(&scores.flatten_to(1)?, &y.flatten_all()?)
    }

    fn block(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attend(&self.norm.forward(x)?)?)?;
        let hidden = self.gate_up.forward(&self.hidden_norm.forward(&x)?)?;
        let hidden = Dropout::new(0.25).forward(&nn::ops::swiglu(&hidden)?, true)?;
        x + self.down.forward(&hidden)?
    }

    fn pictures(&self, x: &Tensor) -> Result<Tensor> {
        // (samples, width, time)
        let pictures = self.channels.forward(&x.transpose(1, 2)?)?;
        let pictures = self
            .statistics
            .forward_t(&self.conv.forward(&pictures)?, true)?;
        Activation::Gelu.forward(&pictures.transpose(1, 2)?)
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (samples, time, _) = x.dims3()?;
        let qkv = self.qkv.forward(x)?;
        let part = |start, heads| {
            let part = qkv.narrow(2, start, heads * HEAD)?;
            part.reshape((samples, time, heads, HEAD))?.transpose(1, 2)
        };
        let rotate = |x: &Tensor| nn::rotary_emb::rope_i(x, &self.cos, &self.sin);
        let (q, k, v) = (part(0, HEADS)?, part(WIDTH, 1)?, part(WIDTH + HEAD, 1)?);
        let options = Attention::default().causal().dropout(0.1).softcap(10.);
        let mixed = nn::attention(&rotate(&q)?, &rotate(&k)?, &v, &options)?;
        let mixed = mixed.transpose(1, 2)?.reshape((samples, time, WIDTH))?;
        self.out.forward(&mixed)
    }
}
