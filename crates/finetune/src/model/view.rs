use candle_headroom::nn::RmsNorm;

/// A layer for evaluation: it shares its parameters with the trained one, keeps no graph, and drops nothing.
pub trait View {
    fn without_graph(&self) -> Self;
}

impl View for RmsNorm {
    fn without_graph(&self) -> Self {
        RmsNorm::new(self.weight().detach(), self.eps())
    }
}
