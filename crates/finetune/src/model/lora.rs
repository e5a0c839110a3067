use anyhow::{Result, bail, ensure};

/// The linear layers of a block.
const LAYERS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Every layer of [`LAYERS`].
pub const ALL_LINEAR: &str = "all-linear";

const MOST_RANK: usize = 1 << 16;

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

impl Lora {
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// The targets, as PEFT saves them.
    pub fn target_modules(&self) -> Vec<String> {
        match self.targets.iter().any(|target| target == ALL_LINEAR) {
            true => names().map(str::to_owned).to_vec(),
            false => self.targets.clone(),
        }
    }

    /// Whether the layer of this path, as `model.layers.0.self_attn.q_proj`, gets an adapter.
    pub fn applies_to(&self, path: &str) -> bool {
        self.targets
            .iter()
            .any(|target| target == ALL_LINEAR || is_named(path, target))
    }

    /// Refuses options out of range.
    pub fn check(&self) -> Result<()> {
        let (rank, alpha, dropout) = (self.rank, self.alpha, self.dropout);
        ensure!(
            (1..=MOST_RANK).contains(&rank),
            "the rank of adapters must be 1 to {MOST_RANK}, got {rank}"
        );
        ensure!(
            alpha.is_finite() && alpha > 0.,
            "the alpha of adapters must be positive, got {alpha}"
        );
        ensure!(
            (0. ..1.).contains(&dropout),
            "the dropout of adapters must be in [0, 1), got {dropout}"
        );
        Ok(())
    }

    /// Refuses a target that names no layer of a decoder with so many blocks.
    pub fn check_targets(&self, blocks: usize) -> Result<()> {
        let of_block = |block| LAYERS.map(|layer| format!("model.layers.{block}.{layer}"));
        let paths: Vec<_> = (0..blocks).flat_map(of_block).collect();
        let is_layer = |target: &str| paths.iter().any(|path| is_named(path, target));
        let mut targets = self.targets.iter().filter(|target| *target != ALL_LINEAR);
        let problem = match targets.find(|target| !is_layer(target)) {
            Some(target) => format!("no layer is named `{target}`"),
            None if self.targets.is_empty() => "adapters have no target".to_owned(),
            None => return Ok(()),
        };
        bail!(
            "{problem}; there are {} and {ALL_LINEAR}, also as `self_attn.q_proj` or `layers.0.mlp.up_proj`",
            names().join(", ")
        )
    }
}

/// The last names of [`LAYERS`].
fn names() -> [&'static str; 7] {
    LAYERS.map(|layer| layer.rsplit('.').next().unwrap_or(layer))
}

/// Whether a target is a path or its last names.
fn is_named(path: &str, target: &str) -> bool {
    path.strip_suffix(target)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}
