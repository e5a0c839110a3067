//! What a loss of tokens is given.

use candle_core::{Result, Tensor, bail};

pub(super) const NAME: &str = "linear_cross_entropy";

/// Options of [`linear_cross_entropy`](super::linear_cross_entropy()): which tokens count, and what is added to the loss.
///
/// The default is the plain cross-entropy of every token.
#[derive(Debug, Clone, Default)]
pub struct LinearCrossEntropy {
    pub(super) bias: Option<Tensor>,
    pub(super) ignore_index: Option<i64>,
    pub(super) token_weights: Option<Tensor>,
    pub(super) label_smoothing: f64,
    pub(super) z_loss: f64,
    pub(super) softcap: Option<f64>,
    pub(super) chunk_rows: Option<usize>,
}

impl LinearCrossEntropy {
    /// Adds `bias` (classes) to the logits, in the type of the weight. If it leads to a Var, it gets its gradient.
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Tokens with this target add nothing to the loss, its mean or any gradient, even if their hidden states are NaN. PyTorch's
    /// default is −100. An index that the type of the targets cannot hold matches none.
    pub fn ignore_index(mut self, index: i64) -> Self {
        self.ignore_index = Some(index);
        self
    }

    /// Multiplies the loss of each token by a weight, at least 0, in the shape of the targets. The mean is then Σ weight · loss /
    /// Σ weight. Weights get no gradient. A token of weight 0 is ignored.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
    ///
    /// let hidden = Tensor::zeros((1, 3, 8), DType::F32, &Device::Cpu)?; // [samples, tokens, width]
    /// let weight = Tensor::zeros((10, 8), DType::F32, &Device::Cpu)?; // [classes, width]
    /// let targets = Tensor::new(&[[2u32, 5, 7]], &Device::Cpu)?;
    /// // The answer counts twice as much as the question, and padding not at all.
    /// let weights = Tensor::new(&[[1f32, 2., 0.]], &Device::Cpu)?;
    /// let options = LinearCrossEntropy::default().token_weights(&weights);
    /// let sum = linear_cross_entropy_sum(&hidden, &weight, &targets, &options)?;
    /// assert_eq!(sum.weight, 3.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn token_weights(mut self, weights: &Tensor) -> Self {
        self.token_weights = Some(weights.detach());
        self
    }

    /// Gives the target 1 − `smoothing` of the probability, and all classes together the rest in equal shares, as PyTorch
    /// (Szegedy et al. 2015, arXiv 1512.00567). In [0, 1).
    pub fn label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// Adds `factor` · (log Σ e^logit)² to the loss of each token, which keeps logits small (PaLM, Chowdhery et al. 2022,
    /// arXiv 2204.02311, with 1e-4).
    pub fn z_loss(mut self, factor: f64) -> Self {
        self.z_loss = factor;
        self
    }

    /// Keeps logits between −`cap` and `cap`, by cap · tanh(logit / cap) (Gemma 2, arXiv 2408.00118).
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Computes so many rows of logits at a time, at least 1, instead of a number chosen from sizes and memory.
    ///
    /// Fewer rows take less memory and more launches. The result changes within rounding.
    pub fn chunk_rows(mut self, rows: usize) -> Self {
        self.chunk_rows = Some(rows);
        self
    }

    pub(super) fn rule(&self) -> Result<Rule> {
        let (smoothing, z_loss) = (self.label_smoothing, self.z_loss);
        if !(0. ..1.).contains(&smoothing) {
            bail!("{NAME}: label_smoothing must be in [0, 1), got {smoothing}")
        }
        if !(z_loss.is_finite() && z_loss >= 0.) {
            bail!("{NAME}: z_loss must be finite and at least 0, got {z_loss}")
        }
        if let Some(cap) = self.softcap
            && !(cap.is_finite() && cap > 0.)
        {
            bail!("{NAME}: softcap must be positive and finite, got {cap}")
        }
        if self.chunk_rows == Some(0) {
            bail!("{NAME}: chunk_rows must be at least 1, got 0")
        }
        Ok(Rule {
            smoothing,
            z_loss,
            softcap: self.softcap,
        })
    }
}

/// The loss of a token, as a function of its logits.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub smoothing: f64,
    pub z_loss: f64,
    pub softcap: Option<f64>,
}

/// What turns some rows of logits into losses.
#[derive(Debug)]
pub struct Arguments<'a> {
    pub rule: Rule,
    /// i64, contiguous, one for each row.
    pub targets: &'a Tensor,
    /// The target of a row that is ignored.
    pub none: i64,
    /// In the type of the logits, contiguous, one for each row.
    pub weights: Option<&'a Tensor>,
    /// In the type of the logits, contiguous, one for each class.
    pub bias: Option<&'a Tensor>,
    /// Whether gradients are asked for.
    pub differentiates: bool,
}
