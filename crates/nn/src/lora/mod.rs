//! Adapters beside the frozen linear layers of any model: LoRA (Hu et al. 2021, arXiv 2106.09685), with a rank-stabilized scale
//! (Kalajdzievski 2023, arXiv 2312.03732) or a magnitude of its own (DoRA, Liu et al. 2024, arXiv 2402.09353).
//!
//! Within [`Lora::attach`], every layer that [`linear`](crate::linear()), [`linear_b`](crate::linear_b()) or
//! [`linear_no_bias`](crate::linear_no_bias()) makes looks for its path among the targets, and those that are named get an [`Adapter`]. A
//! model of candle-transformers that is built on this package needs no other change. A layer of your own asks by [`at`].
//!
//! Parameters have PEFT's names, values at the start, and meaning, so a `VarMap` of them that is saved is PEFT's
//! `adapter_model.safetensors`. They are f32, or f64 beside such a weight.
//!
//! Only linear layers have adapters: convolutions, embeddings, and layers that a model makes of a tensor
//! ([`Linear::new`](crate::Linear::new)), as tied heads are, have none.

mod adapter;
mod attach;

pub use adapter::Adapter;
pub use attach::at;

use candle_core::{Result, bail};

/// The target of all linear layers but the output layer of a language model, which is one named `lm_head` or `embed_out`.
pub const ALL_LINEAR: &str = "all-linear";

const OUTPUTS: [&str; 2] = ["lm_head", "embed_out"];
const MOST_RANK: usize = 1 << 16;

/// Options of adapters, and which layers get one: y = W · x + scale · B · A · dropout(x), with W frozen.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_headroom_nn::lora::Lora;
/// use candle_headroom_nn::{Linear, VarBuilder, VarMap, linear};
///
/// struct Model(Linear, Linear);
///
/// let base = VarBuilder::zeros(DType::F32, &Device::Cpu); // from_mmaped_safetensors in a program
/// let lora = Lora { rank: 4, targets: vec!["up".to_owned()], ..Lora::default() };
/// let adapters = VarMap::new(); // what is trained
/// let (model, layers) = lora.attach(&adapters, || {
///     Ok(Model(linear(16, 64, base.pp("mlp.up"))?, linear(64, 16, base.pp("mlp.down"))?))
/// })?;
/// assert_eq!(layers.into_keys().collect::<Vec<_>>(), ["mlp.up"]);
/// let x = Tensor::ones((2, 16), DType::F32, &Device::Cpu)?;
/// let gradients = model.1.forward(&model.0.forward(&x)?)?.sum_all()?.backward()?;
/// assert!(adapters.all_vars().iter().all(|var| gradients.get(var).is_some()));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// What the adapter's output is multiplied by, before it is divided by the rank.
    pub alpha: f64,
    /// Probability with which an element of the adapter's input is left out. Nothing is within
    /// [`scope::frozen`](crate::scope::frozen), and in layers [without a graph](crate::Linear::without_graph).
    pub dropout: f64,
    /// The layers that get an adapter, each by the last names of its path, such as `q_proj`, `self_attn.q_proj` or
    /// `layers.3.mlp.up_proj`, where `*` stands for any one name; or [`ALL_LINEAR`].
    pub targets: Vec<String>,
    /// Divides by the square root of the rank instead of the rank.
    pub rank_stabilized: bool,
    /// DoRA: each row of W + scale · B · A is divided by its norm, whose gradient is not followed, and multiplied by a trained magnitude,
    /// which is the norm of the row of W at first.
    pub dora: bool,
}

impl Default for Lora {
    /// Rank 8, alpha 16 and no dropout, on all linear layers.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.,
            dropout: 0.,
            targets: vec![ALL_LINEAR.to_owned()],
            rank_stabilized: false,
            dora: false,
        }
    }
}

impl Lora {
    /// What the adapter's output is multiplied by.
    ///
    /// ```
    /// use candle_headroom_nn::lora::Lora;
    ///
    /// let lora = Lora { rank: 16, alpha: 32., ..Lora::default() };
    /// assert_eq!(lora.scale(), 2.);
    /// assert_eq!(Lora { rank_stabilized: true, ..lora }.scale(), 8.);
    /// ```
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        let divisor = if self.rank_stabilized {
            rank.sqrt()
        } else {
            rank
        };
        self.alpha / divisor
    }

    /// Checks the options without a model.
    ///
    /// ```
    /// use candle_headroom_nn::lora::Lora;
    ///
    /// let error = Lora { rank: 0, ..Lora::default() }.check().unwrap_err();
    /// assert!(error.to_string().contains("must be 1 to 65536, got 0"));
    /// ```
    ///
    /// # Errors
    /// If a number is out of range or there is no target.
    pub fn check(&self) -> Result<()> {
        let (rank, alpha, dropout) = (self.rank, self.alpha, self.dropout);
        if !(1..=MOST_RANK).contains(&rank) {
            bail!("the rank of adapters must be 1 to {MOST_RANK}, got {rank}")
        }
        if !(alpha.is_finite() && alpha > 0.) {
            bail!("the alpha of adapters must be positive, got {alpha}")
        }
        if !(0. ..1.).contains(&dropout) {
            bail!("the dropout of adapters must be in [0, 1), got {dropout}")
        }
        if self.targets.is_empty() {
            bail!("adapters have no target: name layers, or `{ALL_LINEAR}`")
        }
        Ok(())
    }

    /// The paths of the linear layers, of all those of a model, that get an adapter.
    ///
    /// ```
    /// use candle_headroom_nn::lora::Lora;
    ///
    /// let model = ["layers.0.q_proj", "layers.0.v_proj", "layers.1.q_proj", "lm_head"];
    /// let chosen = |target: &str| Lora { targets: vec![target.to_owned()], ..Lora::default() }.choose(&model);
    /// assert_eq!(chosen("q_proj")?, ["layers.0.q_proj", "layers.1.q_proj"]);
    /// assert_eq!(chosen("layers.0.*")?, ["layers.0.q_proj", "layers.0.v_proj"]);
    /// assert_eq!(chosen("all-linear")?.len(), 3);
    /// assert!(chosen("k_proj").unwrap_err().to_string().contains("`k_proj`"));
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`check`](Self::check), and if a target names none of them.
    pub fn choose<'a>(&self, paths: &[&'a str]) -> Result<Vec<&'a str>> {
        self.check()?;
        let is_none = |target: &&String| !paths.iter().any(|path| names(target, path));
        if let Some(target) = self.targets.iter().find(is_none) {
            let mut last: Vec<_> = paths.iter().map(|path| last_name(path)).collect();
            let mut seen = std::collections::HashSet::new();
            last.retain(|name| seen.insert(*name));
            bail!(
                "no linear layer is named `{target}`; there are {} and {ALL_LINEAR}, also as the last names of a path, with `*` for any \
                 name (convolutions and embeddings have no adapters)",
                last.join(", ")
            )
        }
        let chosen = paths.iter().filter(|path| self.applies_to(path));
        Ok(chosen.copied().collect())
    }

    fn applies_to(&self, path: &str) -> bool {
        self.targets.iter().any(|target| names(target, path))
    }
}

fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Whether a target names the layer of this path.
fn names(target: &str, path: &str) -> bool {
    if target == ALL_LINEAR {
        return !OUTPUTS.contains(&last_name(path));
    }
    let mut path = path.rsplit('.');
    target.rsplit('.').all(|name| {
        path.next()
            .is_some_and(|found| name == "*" || name == found)
    })
}
