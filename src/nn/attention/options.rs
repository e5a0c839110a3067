use candle_core::Tensor;

/// Options of [`attention`](super::attention): which keys a query sees, and how scores become weights.
///
/// The default is attention of each query to all keys, with scores multiplied by 1/√d.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::nn::{Attention, attention};
///
/// # fn main() -> candle_core::Result<()> {
/// let q = Tensor::randn(0f32, 1., (2, 8, 10, 16), &Device::Cpu)?; // [batch, heads, queries, width]
/// let k = Tensor::randn(0f32, 1., (2, 4, 10, 16), &Device::Cpu)?; // 2 query heads share a key head
/// let v = Tensor::randn(0f32, 1., (2, 4, 10, 16), &Device::Cpu)?;
/// let y = attention(&q, &k, &v, &Attention::default().causal().dropout(0.1, 299792458))?;
/// assert_eq!(y.dims(), [2, 8, 10, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Attention {
    pub(super) causal: Option<Causal>,
    pub(super) mask: Option<Tensor>,
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    pub(super) dropout: Option<(f64, u64)>,
}

/// The last key that a query sees.
#[derive(Debug, Clone, Copy)]
pub(super) enum Causal {
    /// The last query sees the last key.
    FromEnd,
    /// The first query sees the key of this index.
    From(usize),
}

impl Attention {
    /// Each query sees one key more than the query before it, and the last query sees the last key. With as many keys as
    /// queries, query i sees keys 0 to i. With s keys and t queries it sees keys 0 to i + s − t: after t − s queries that see
    /// nothing, if there are more queries than keys.
    pub fn causal(mut self) -> Self {
        self.causal = Some(Causal::FromEnd);
        self
    }

    /// Query i sees keys 0 to i + `offset`, if there are so many: the first query follows `offset` cached keys.
    pub fn causal_from(mut self, offset: usize) -> Self {
        self.causal = Some(Causal::From(offset));
        self
    }

    /// Adds `mask` to the scores, after scaling and soft capping: −∞ hides a key, other numbers are a bias. Its shape can be
    /// broadcast to (batch, heads, queries, keys), its type is that of the queries.
    ///
    /// If the mask leads to a Var, it gets its gradient.
    pub fn mask(mut self, mask: &Tensor) -> Self {
        self.mask = Some(mask.clone());
        self
    }

    /// What scores are multiplied by, instead of 1/√d.
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Keeps scores between −`cap` and `cap`, by cap · tanh(score / cap) after scaling (Gemma 2).
    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Sets each weight to zero with probability `rate` and divides the others by 1 − `rate`. Which ones depends on `seed` and the
    /// weight's position only, so the same seed gives the same result in a retry and in recomputation. Use another seed for each
    /// layer and step.
    pub fn dropout(mut self, rate: f64, seed: u64) -> Self {
        self.dropout = Some((rate, seed));
        self
    }
}
