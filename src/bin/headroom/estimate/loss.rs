//! What the loss takes: with all logits, or by `linear_cross_entropy`.

use super::activations::{Model, Way};

impl Model<'_> {
    /// What the loss takes, with its gradients.
    pub fn at_loss(&self, tokens: f64, way: Way) -> f64 {
        let (vocabulary, width) = (self.config.vocabulary as f64, self.config.width as f64);
        let table = self.table();
        if !way.without_logits {
            // The logits and their gradient, then candle's sum of the weight's gradient.
            let logits = tokens * vocabulary * self.size();
            let hidden = tokens * width * self.size();
            let product = logits + hidden + table + self.converted(tokens);
            return logits + product.max(hidden + 3. * table);
        }
        let hidden = tokens * width * 4.;
        let own = table * 4. / self.size();
        let chunk = self.rows(tokens) * vocabulary * self.logit();
        let converted = if self.size() < 4. { own } else { 0. };
        hidden + (own + chunk).max(3. * table + converted)
    }

    /// Copies for the last product's gradients on the CPU: of the logits' gradient for that of the weight, and for half types f32 ones of all
    /// operands.
    fn converted(&self, tokens: f64) -> f64 {
        let (vocabulary, width) = (self.config.vocabulary as f64, self.config.width as f64);
        let logits = tokens * vocabulary;
        let turned = if self.table() > 0. { logits } else { 0. };
        match self.size() {
            _ if self.is_gpu => 0.,
            size if size < 4. => 4. * (turned + logits + tokens * width + vocabulary * width),
            _ => 4. * turned,
        }
    }

    /// Rows of logits that are computed at a time, as `linear_cross_entropy` chooses them.
    fn rows(&self, tokens: f64) -> f64 {
        let vocabulary = self.config.vocabulary as f64;
        let rows = match &self.training.lora {
            None => self.config.width as f64,
            Some(_) => tokens * self.config.width as f64 / vocabulary,
        };
        let rows = rows.clamp(64., 512.).max((1u64 << 18) as f64 / vocabulary);
        rows.log2().floor().exp2().min(tokens)
    }

    /// Bytes of a logit in a chunk: on a GPU half types are rounded for the products.
    fn logit(&self) -> f64 {
        match self.size() {
            size if size < 4. && self.is_gpu => 4. + size,
            _ => 4.,
        }
    }
}
