use candle_core::{Result, bail};

/// The linear layers of a block.
pub const LAYERS: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Every layer of [`LAYERS`].
pub const ALL_LINEAR: &str = "all-linear";

/// Options of adapters: y = W · x + (alpha / rank) · B · A · dropout(x), with W frozen (Hu et al. 2021, arXiv 2106.09685).
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f64,
    /// The layers that get one: `q_proj`, `self_attn.q_proj`, `layers.3.mlp.up_proj`, …, or `all-linear`.
    pub targets: Vec<String>,
    /// Probability with which an element of the input is left out, in training.
    pub dropout: f64,
}

impl Default for Lora {
    /// Rank 8 and alpha 16 for all linear layers, without dropout.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.,
            targets: vec![ALL_LINEAR.to_owned()],
            dropout: 0.,
        }
    }
}

impl Lora {
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// The targets, as PEFT saves them.
    pub fn target_modules(&self) -> Vec<String> {
        match self.targets.iter().any(|target| target == ALL_LINEAR) {
            true => LAYERS.map(str::to_owned).to_vec(),
            false => self.targets.clone(),
        }
    }

    /// Whether the layer of this path, as `model.layers.0.self_attn.q_proj`, gets an adapter.
    pub fn applies_to(&self, path: &str) -> bool {
        self.targets
            .iter()
            .any(|target| target == ALL_LINEAR || is_named(path, target))
    }

    /// Refuses options out of range, and a target that names none of the layers.
    pub fn check(&self, paths: &[String]) -> Result<()> {
        if self.rank == 0 {
            bail!("the rank of adapters must be at least 1, got 0")
        }
        if !(self.alpha.is_finite() && self.alpha > 0.) {
            bail!("the alpha of adapters must be positive, got {}", self.alpha)
        }
        if !(0. ..1.).contains(&self.dropout) {
            bail!(
                "the dropout of adapters must be in [0, 1), got {}",
                self.dropout
            )
        }
        if self.targets.is_empty() {
            bail!(
                "adapters have no target; there are {} and {ALL_LINEAR}",
                LAYERS.join(", ")
            )
        }
        let mut targets = self.targets.iter().filter(|target| *target != ALL_LINEAR);
        match targets.find(|target| !paths.iter().any(|path| is_named(path, target))) {
            None => Ok(()),
            Some(target) => bail!(
                "no layer is named `{target}`; there are {} and {ALL_LINEAR}, also as `self_attn.q_proj` or `layers.0.mlp.up_proj`",
                LAYERS.join(", ")
            ),
        }
    }
}

/// Whether a target is a path or its last names.
fn is_named(path: &str, target: &str) -> bool {
    path.strip_suffix(target)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}
