//! Layers on the GPU, forward and backward: this crate's, candle's plain operations, and PyTorch's, by time and by peak. Shapes are
//! those of one layer of Llama-3-8B in bf16, and of a language model of 10.7 million parameters in f32.

use std::process::Command;
use std::time::Instant;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::nn::quantized::FrozenLinear;
use candle_headroom::optim::{Commit, ParamsAdamW};
use candle_headroom::{AdamW, DeviceMemory, nn};
use candle_nn::{Module, Optimizer, VarBuilder, VarMap, loss, ops, rotary_emb};

use crate::support::transformer::{Config, Transformer};
use crate::support::{Contender, alternate, is_quick};
use crate::{composed, is_real, report};

type Run<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// One layer's sizes, and how many tokens attention is tried with.
pub struct Sizes {
    pub tokens: usize,
    pub width: usize,
    pub heads: usize,
    pub key_heads: usize,
    hidden: usize,
    vocabulary: usize,
    texts: [usize; 3],
    /// Above this many tokens plain attention does not fit.
    most_plain: usize,
}

pub const LLAMA: Sizes = Sizes {
    tokens: 4096,
    width: 4096,
    heads: 32,
    key_heads: 8,
    hidden: 14_336,
    vocabulary: 128_256,
    texts: [1024, 4096, 16_384],
    most_plain: 4096,
};

/// What the simulated driver takes seconds for.
const SMALL: Sizes = Sizes {
    tokens: 4,
    width: 16,
    heads: 2,
    key_heads: 1,
    hidden: 24,
    vocabulary: 32,
    texts: [2, 4, 8],
    most_plain: 8,
};

impl Sizes {
    pub fn head(&self) -> usize {
        self.width / self.heads
    }
}

/// Random values of the layer's type, of which gradients are asked.
pub fn var(device: &Device, shape: &[usize]) -> Result<Tensor> {
    let values = Tensor::randn(0f32, 0.02, shape, device)?.to_dtype(DType::BF16)?;
    Ok(Var::from_tensor(&values)?.into_inner())
}

/// The sum is taken of rows first: candle gives one block of threads to each number of a sum.
pub fn sum(output: Tensor) -> Result<Tensor> {
    output.sum(D::Minus1)?.sum_all()
}

fn walk_back(output: Tensor) -> Result<()> {
    // On plain operations this is candle's own pass.
    nn::backward(&sum(output)?).map(drop)
}

pub fn against_others(memory: &DeviceMemory) -> candle_headroom::Result<()> {
    let sizes = if is_real() { LLAMA } else { SMALL };
    let device = memory.device();
    for tokens in sizes.texts {
        let q = var(device, &[1, sizes.heads, tokens, sizes.head()])?;
        let k = var(device, &[1, sizes.key_heads, tokens, sizes.head()])?;
        let v = var(device, &[1, sizes.key_heads, tokens, sizes.head()])?;
        let causal = nn::Attention::default().causal();
        let plain = tokens <= sizes.most_plain;
        compare(
            memory,
            &format!("attention_{tokens}"),
            // As it lies in memory.
            Box::new(|| walk_back(nn::attention(&q, &k, &v, &causal)?.transpose(1, 2)?)),
            plain.then(|| -> Run<'_> { Box::new(|| walk_back(plain_attention(&q, &k, &v)?)) }),
        )?;
    }

    let x = var(device, &[sizes.tokens, sizes.width])?;
    let (weight, bias) = (var(device, &[sizes.width])?, var(device, &[sizes.width])?);
    compare(memory, "sum_alone", Box::new(|| walk_back(x.clone())), None)?;
    compare(
        memory,
        "rms_norm",
        Box::new(|| walk_back(nn::ops::rms_norm(&x, &weight, 1e-5)?)),
        Some(Box::new(|| {
            walk_back(ops::rms_norm_slow(&x, &weight, 1e-5)?)
        })),
    )?;
    compare(
        memory,
        "layer_norm",
        Box::new(|| walk_back(nn::ops::layer_norm(&x, &weight, &bias, 1e-5)?)),
        Some(Box::new(|| {
            walk_back(ops::layer_norm_slow(&x, &weight, &bias, 1e-5)?)
        })),
    )?;
    let halves = var(device, &[sizes.tokens, 2 * sizes.hidden])?;
    compare(
        memory,
        "swiglu",
        Box::new(|| walk_back(nn::ops::swiglu(&halves)?)),
        Some(Box::new(|| walk_back(ops::swiglu(&halves)?))),
    )?;
    drop(halves);

    let head = var(device, &[sizes.vocabulary, sizes.width])?;
    let targets = (0..sizes.tokens).map(|i| (i * 31 % sizes.vocabulary) as u32);
    let targets = Tensor::from_iter(targets, device)?;
    let options = LinearCrossEntropy::default();
    compare(
        memory,
        "linear_cross_entropy",
        Box::new(|| {
            let loss = linear_cross_entropy(&x, &head, &targets, &options)?;
            nn::backward(&loss).map(drop)
        }),
        Some(Box::new(|| {
            let loss = loss::cross_entropy(&x.matmul(&head.t()?)?, &targets)?;
            loss.backward().map(drop)
        })),
    )?;
    drop((head, targets));

    let layer = Layer::new(device, &sizes)?;
    let x = var(device, &[1, sizes.tokens, sizes.width])?;
    compare(
        memory,
        "llama_layer",
        Box::new(|| walk_back(layer.forward(&x)?)),
        Some(Box::new(|| walk_back(layer.forward_plain(&x)?))),
    )?;
    drop((layer, x));
    language_model(memory, "language_model")
}

/// The same with an event for each use of a tensor.
pub fn with_events(memory: &DeviceMemory) -> candle_headroom::Result<()> {
    language_model(memory, "language_model_with_events")
}

/// The one of our layers that `--only NAME` asks for.
pub fn only() -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--only");
    arguments.nth(1)
}

/// Whether `--once` asks for each of our layers a single time, for a profiler.
pub fn is_once() -> bool {
    std::env::args().any(|argument| argument == "--once")
}

/// Times and peaks of one operation, ours and plain.
fn compare<'a>(
    memory: &'a DeviceMemory,
    name: &str,
    ours: Run<'a>,
    plain: Option<Run<'a>>,
) -> candle_headroom::Result<()> {
    if only().is_some_and(|only| only != name) {
        return Ok(());
    }
    if is_once() {
        ours()?;
        return Ok(memory.device().synchronize()?);
    }
    let peak = |run: &Run<'_>| -> candle_headroom::Result<f64> {
        memory.trim()?;
        let scope = memory.peak_scope();
        run()?;
        memory.device().synchronize()?;
        let taken = scope.peak().unwrap_or(0) - scope.start().unwrap_or(0);
        Ok(taken as f64 / f64::from(1 << 20))
    };
    report(&format!("{name}_peak"), peak(&ours)?, "MiB");
    if let Some(plain) = &plain {
        report(&format!("{name}_plain_peak"), peak(plain)?, "MiB");
    }
    let has_plain = plain.is_some();
    let contenders = [("ours", Some(ours)), ("plain", plain)]
        .into_iter()
        .filter_map(|(name, run)| Some(timed(memory.device(), name, run?)))
        .collect();
    let rounds = match (is_real(), is_quick()) {
        (true, false) => 21,
        (true, true) => 7,
        (false, _) => 1,
    };
    let rounds = alternate(contenders, rounds);
    report(
        &format!("{name}_milliseconds"),
        rounds.median("ours") * 1e3,
        "ms",
    );
    if has_plain {
        report(
            &format!("{name}_plain_milliseconds"),
            rounds.median("plain") * 1e3,
            "ms",
        );
    }
    Ok(())
}

/// A run that is waited for.
fn timed<'a>(device: &'a Device, name: &'static str, run: Run<'a>) -> Contender<'a> {
    Contender::new(name, move || {
        run().expect("a step");
        device.synchronize().expect("a sound device");
    })
}

/// Causal attention of plain operations, with key heads repeated and the whole matrix of scores.
pub fn plain_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (samples, heads, time, head) = q.dims4()?;
    let few = k.dim(1)?;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        x.unsqueeze(2)?
            .expand((samples, few, heads / few, time, head))?
            .reshape((samples, heads, time, head))
    };
    let positions = Tensor::arange(0u32, time as u32, q.device())?;
    let ahead = positions
        .unsqueeze(0)?
        .broadcast_gt(&positions.unsqueeze(1)?)?;
    let ahead = ahead.broadcast_as((samples, heads, time, time))?;
    let scores = (q.matmul(&repeat(k)?.t()?)? * (head as f64).powf(-0.5))?;
    let never = Tensor::new(f32::NEG_INFINITY, q.device())?.to_dtype(q.dtype())?;
    let scores = ahead.where_cond(&never.broadcast_as(scores.shape())?, &scores)?;
    ops::softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)
}

/// A layer of Llama: attention and a gated feed-forward layer, each with a norm before it and added to what came in.
pub struct Layer {
    heads: usize,
    key_heads: usize,
    norms: [Tensor; 2],
    /// q, k, v, out, gate and up as one, down.
    weights: [Tensor; 6],
    /// Two matrices of LoRA beside each weight, which is frozen then.
    adapters: Option<[[Tensor; 2]; 6]>,
    /// The weights in Q4_K, in place of those.
    quantized: Option<[FrozenLinear; 6]>,
    cos: Tensor,
    sin: Tensor,
}

impl Layer {
    pub fn new(device: &Device, sizes: &Sizes) -> Result<Self> {
        let (width, few) = (sizes.width, sizes.key_heads * sizes.head());
        let weight = |rows, columns| var(device, &[rows, columns]);
        let half = sizes.head() / 2;
        let angles = (0..sizes.tokens * half).map(|i| {
            let rate = 500_000f32.powf(-((i % half) as f32) / half as f32);
            (i / half) as f32 * rate
        });
        let angles = Tensor::from_iter(angles, device)?.reshape((sizes.tokens, half))?;
        Ok(Self {
            heads: sizes.heads,
            key_heads: sizes.key_heads,
            norms: [var(device, &[width])?, var(device, &[width])?],
            weights: [
                weight(width, width)?,
                weight(few, width)?,
                weight(few, width)?,
                weight(width, width)?,
                weight(2 * sizes.hidden, width)?,
                weight(width, sizes.hidden)?,
            ],
            adapters: None,
            quantized: None,
            cos: angles.cos()?.to_dtype(DType::BF16)?,
            sin: angles.sin()?.to_dtype(DType::BF16)?,
        })
    }

    /// The same with adapters of this rank, and nothing else that is trained.
    pub fn with_adapters(self, rank: usize) -> Result<Self> {
        let frozen = self.weights.each_ref().map(Tensor::detach);
        let mut adapters = Vec::new();
        for weight in &frozen {
            let (rows, columns) = weight.dims2()?;
            let device = weight.device();
            adapters.push([var(device, &[rank, columns])?, var(device, &[rows, rank])?]);
        }
        Ok(Self {
            norms: self.norms.each_ref().map(Tensor::detach),
            weights: frozen,
            adapters: adapters.try_into().ok(),
            ..self
        })
    }

    /// The same with zeros in Q4_K as weights.
    pub fn with_quantized_base(self) -> Result<Self> {
        let mut quantized = Vec::new();
        for weight in &self.weights {
            let format = GgmlDType::Q4K;
            let bytes = weight.elem_count() / format.block_size() * format.type_size();
            let bytes = vec![0; bytes].into();
            let storage = QStorage::from_data(bytes, weight.device(), format)?;
            let weight = QTensor::new(storage, weight.shape())?;
            quantized.push(FrozenLinear::new(weight, None)?);
        }
        let quantized = quantized.try_into().ok();
        Ok(Self { quantized, ..self })
    }

    fn by_head(x: &Tensor, heads: usize) -> Result<Tensor> {
        let (samples, time, width) = x.dims3()?;
        x.reshape((samples, time, heads, width / heads))?
            .transpose(1, 2)?
            .contiguous()
    }

    fn by_token(x: &Tensor) -> Result<Tensor> {
        x.transpose(1, 2)?.flatten_from(2)
    }

    fn linear(&self, at: usize, x: &Tensor) -> Result<Tensor> {
        let linear = |w: &Tensor, x: &Tensor| nn::Linear::new(w.clone(), None).forward(x);
        let y = match &self.quantized {
            Some(quantized) => quantized[at].forward(x)?,
            None => linear(&self.weights[at], x)?,
        };
        match &self.adapters {
            Some(adapters) => {
                let [a, b] = &adapters[at];
                nn::ops::add(&y, &linear(b, &(linear(a, x)? * 2.)?)?)
            }
            None => Ok(y),
        }
    }

    fn linear_plain(&self, at: usize, x: &Tensor) -> Result<Tensor> {
        let linear = |w: &Tensor, x: &Tensor| candle_nn::Linear::new(w.clone(), None).forward(x);
        let y = linear(&self.weights[at], x)?;
        match &self.adapters {
            Some(adapters) => {
                let [a, b] = &adapters[at];
                y + linear(b, &(linear(a, x)? * 2.)?)?
            }
            None => Ok(y),
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = nn::ops::rms_norm(x, &self.norms[0], 1e-5)?;
        let (samples, time, _) = x.dims3()?;
        let heads = |at, heads| {
            let y = self.linear(at, &normed)?;
            y.reshape((samples, time, heads, ()))
        };
        let (q, k) = (heads(0, self.heads)?, heads(1, self.key_heads)?);
        let (q, k) = nn::rotary_emb::rope_thd_both(&q, &k, &self.cos, &self.sin)?;
        let v = heads(2, self.key_heads)?;
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        let mixed = nn::attention(&q, &k, &v, &nn::Attention::default().causal())?;
        let norm = nn::RmsNorm::new(self.norms[1].clone(), 1e-5);
        let mixed = self.linear(3, &Self::by_token(&mixed)?)?;
        let (x, normed) = norm.forward_residual(&mixed, x)?;
        let hidden = nn::ops::swiglu(&self.linear(4, &normed)?)?;
        nn::ops::add(&self.linear(5, &hidden)?, &x)
    }

    pub fn forward_plain(&self, x: &Tensor) -> Result<Tensor> {
        let normed = ops::rms_norm_slow(x, &self.norms[0], 1e-5)?;
        let turn = |x: &Tensor| rotary_emb::rope_slow(x, &self.cos, &self.sin);
        let q = turn(&Self::by_head(&self.linear_plain(0, &normed)?, self.heads)?)?;
        let k = turn(&Self::by_head(
            &self.linear_plain(1, &normed)?,
            self.key_heads,
        )?)?;
        let v = Self::by_head(&self.linear_plain(2, &normed)?, self.key_heads)?;
        let mixed = plain_attention(&q, &k, &v)?;
        let x = (self.linear_plain(3, &Self::by_token(&mixed)?)? + x)?;
        let normed = ops::rms_norm_slow(&x, &self.norms[1], 1e-5)?;
        let hidden = ops::swiglu(&self.linear_plain(4, &normed)?)?;
        self.linear_plain(5, &hidden)? + &x
    }
}

/// PyTorch's figures, from a process of its own.
pub fn print_pytorchs() {
    if !is_real() {
        return;
    }
    let python = Command::new("python3")
        .args(["-c", include_str!("torch_layers.py"), "cuda:0", "21"])
        .status();
    if !python.is_ok_and(|status| status.success()) {
        println!("skipped: python3 has no PyTorch that runs here");
    }
}

/// The parameters in the order of their names, so that each run allocates in the same order.
fn by_name(map: &VarMap) -> Vec<Var> {
    let map = map.data().lock().expect("no thread has panicked");
    let mut vars: Vec<_> = map.iter().collect();
    vars.sort_by_key(|(name, _)| *name);
    vars.into_iter().map(|(_, var)| var.clone()).collect()
}

/// The model of `train_text`, ours and plain, with its texts.
pub struct LanguageModels {
    pub bytes: Tensor,
    pub ours: Transformer,
    pub plain: composed::Transformer,
    maps: [VarMap; 2],
}

impl LanguageModels {
    /// `(context, width, heads, layers, samples)` of 10.7 million parameters.
    pub const LARGE: [usize; 5] = [256, 384, 6, 6, 64];

    pub fn new(
        device: &Device,
        [context, width, heads, layers, samples]: [usize; 5],
    ) -> Result<Self> {
        let bytes = (0..samples * context).map(|i| (i * 31 % 251) as u32);
        let bytes = Tensor::from_iter(bytes, device)?.reshape((samples, context))?;
        let maps = [VarMap::new(), VarMap::new()];
        let [vb, plain_vb] = maps
            .each_ref()
            .map(|map| VarBuilder::from_varmap(map, DType::F32, device));
        let config = Config {
            context,
            width,
            heads,
            layers,
        };
        let ours = Transformer::new(config, vb)?;
        let config = composed::Config {
            context,
            width,
            heads,
            layers,
        };
        let plain = composed::Transformer::new(config, plain_vb)?;
        Ok(Self {
            bytes,
            ours,
            plain,
            maps,
        })
    }
}

/// A step with AdamW of the model of `train_text` at 10.7 million parameters, 64 texts of 256 bytes.
fn language_model(memory: &DeviceMemory, name: &str) -> candle_headroom::Result<()> {
    let sizes = match is_real() {
        true => LanguageModels::LARGE,
        false => [4, 8, 2, 1, 2],
    };
    let device = memory.device();
    let LanguageModels {
        bytes,
        ours: model,
        plain,
        maps,
    } = LanguageModels::new(device, sizes)?;
    let optimizer = AdamW::builder(&maps[0]).build()?;
    let optimizer = std::cell::RefCell::new(optimizer);
    let candles = candle_nn::AdamW::new(by_name(&maps[1]), ParamsAdamW::default())?;
    let candles = std::cell::RefCell::new(candles);
    let wait = || device.synchronize();
    for _ in 0..if is_once() { 0 } else { 3 } {
        let began = Instant::now();
        let loss = model.loss(&bytes, &bytes)?;
        wait()?;
        let forward = began.elapsed();
        let gradients = nn::backward(&loss)?;
        wait()?;
        let backward = began.elapsed() - forward;
        optimizer.borrow_mut().commit(&gradients)?;
        wait()?;
        let update = began.elapsed() - forward - backward;
        println!("language_model: forward {forward:?}, backward {backward:?}, update {update:?}");
    }
    compare(
        memory,
        name,
        Box::new(|| {
            let gradients = nn::backward(&model.loss(&bytes, &bytes)?)?;
            let committed = optimizer.borrow_mut().commit(&gradients);
            committed.map(drop).map_err(candle_core::Error::wrap)
        }),
        Some(Box::new(|| {
            let gradients = plain.loss(&bytes, &bytes)?.backward()?;
            candles.borrow_mut().step(&gradients)
        })),
    )
}
