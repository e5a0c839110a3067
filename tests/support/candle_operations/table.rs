use std::sync::Arc;

use candle_core::{D, DType, Result, Tensor};

type Apply = Arc<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

/// An operation with the shapes of its operands.
pub struct Operation {
    /// The method's name and what sets this use of it apart.
    pub name: String,
    pub operands: Vec<Operand>,
    pub apply: Apply,
    pub step: f64,
    pub tolerance: f64,
}

#[derive(Clone)]
pub struct Operand {
    pub dims: Vec<usize>,
    pub domain: Domain,
    /// Lies as the other operands do, also if they are broadcast.
    pub broadcasts: bool,
}

/// Where the values of an operand lie.
#[derive(Clone, Copy, Debug)]
pub enum Domain {
    /// From 0.3 to 1.7, in either sign.
    Signed,
    /// From 0.3 to 1.7.
    Positive,
}

use Domain::{Positive, Signed};

impl Domain {
    /// The value of a number between 0 and 1.
    pub fn place(self, unit: f64) -> f64 {
        match self {
            Self::Positive => 0.3 + 1.4 * unit,
            Self::Signed if unit < 0.5 => 0.3 + 2.8 * unit,
            Self::Signed => -0.3 - 2.8 * (unit - 0.5),
        }
    }
}

pub fn many(
    name: impl Into<String>,
    operands: &[(&[usize], Domain)],
    apply: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Operation {
    let operands = operands.iter().map(|&(dims, domain)| Operand {
        dims: dims.to_vec(),
        domain,
        broadcasts: true,
    });
    Operation {
        name: name.into(),
        operands: operands.collect(),
        apply: Arc::new(apply),
        step: 1e-5,
        // candle has constants of six digits in its gradient of gelu.
        tolerance: 1e-5,
    }
}

pub fn one(
    name: impl Into<String>,
    dims: &[usize],
    apply: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Operation {
    many(name, &[(dims, Signed)], move |x| apply(&x[0]))
}

fn positive(
    name: impl Into<String>,
    dims: &[usize],
    apply: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Operation {
    many(name, &[(dims, Positive)], move |x| apply(&x[0]))
}

pub fn two(
    name: impl Into<String>,
    left: &[usize],
    right: &[usize],
    apply: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Operation {
    many(name, &[(left, Signed), (right, Signed)], move |x| {
        apply(&x[0], &x[1])
    })
}

/// Indices on the device of a tensor.
pub fn indices(ids: &[u32], dims: &[usize], like: &Tensor) -> Result<Tensor> {
    Tensor::from_slice(ids, dims, like.device())
}

/// A mask of every third element.
fn thirds(like: &Tensor) -> Result<Tensor> {
    let mask = (0..like.elem_count()).map(|index| u8::from(index % 3 == 0));
    Tensor::from_vec(mask.collect::<Vec<_>>(), like.shape(), like.device())
}

/// candle-core's differentiable operations, with several sizes and parameters where these matter.
pub fn operations() -> Vec<Operation> {
    let mut all = elementwise();
    all.extend(binary());
    all.extend(reductions());
    all.extend(products());
    all.extend(convolutions());
    all.extend(images());
    all.extend(indexed());
    all.extend(shapes());
    all
}

fn elementwise() -> Vec<Operation> {
    let dims = &[3, 4];
    vec![
        one("neg", dims, Tensor::neg),
        one("recip", dims, Tensor::recip),
        one("exp", dims, Tensor::exp),
        positive("log", dims, Tensor::log),
        one("sin", dims, Tensor::sin),
        one("cos", dims, Tensor::cos),
        one("tanh", dims, Tensor::tanh),
        one("abs", dims, Tensor::abs),
        one("sqr", dims, Tensor::sqr),
        positive("sqrt", dims, Tensor::sqrt),
        one("gelu", dims, Tensor::gelu),
        one("gelu_erf", dims, Tensor::gelu_erf),
        one("erf", dims, Tensor::erf),
        one("relu", dims, Tensor::relu),
        one("silu", dims, Tensor::silu),
        one("elu 0.7", dims, |x| x.elu(0.7)),
        one("powf 3", dims, |x| x.powf(3.)),
        positive("powf 0.5", dims, |x| x.powf(0.5)),
        one("powf -2", dims, |x| x.powf(-2.)),
        one("affine 2 -1", dims, |x| x.affine(2., -1.)),
        one("affine 0 1", dims, |x| x.affine(0., 1.)),
        one("clamp", dims, |x| x.clamp(-0.731, 0.913)),
        one("maximum 0.731", dims, |x| x.maximum(0.731)),
        one("minimum 0.731", dims, |x| x.minimum(0.731)),
        one("floor", dims, Tensor::floor),
        one("ceil", dims, Tensor::ceil),
        one("round", dims, Tensor::round),
        one("round_to 1", dims, |x| x.affine(1., 0.0137)?.round_to(1)),
        one("sign", dims, Tensor::sign),
        one("copy", dims, Tensor::copy),
        one("contiguous", dims, Tensor::contiguous),
        one("force_contiguous", dims, Tensor::force_contiguous),
        one("to_device", dims, |x| x.to_device(&x.device().clone())),
        Operation {
            // The loss is linear and rounded to f32.
            step: 0.5,
            tolerance: 1e-5,
            ..one("to_dtype", dims, |x| {
                x.to_dtype(DType::F32)?.to_dtype(x.dtype())
            })
        },
        one("exp / sum", dims, |x| {
            let exp = x.exp()?;
            exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)
        }),
        one("softmax over log_sum_exp", dims, |x| {
            x.broadcast_sub(&x.log_sum_exp(1)?.unsqueeze(1)?)
        }),
    ]
}

fn binary() -> Vec<Operation> {
    let (dims, row) = (&[3, 4], &[4]);
    vec![
        two("add", dims, dims, |x, y| x + y),
        two("sub", dims, dims, |x, y| x - y),
        two("mul", dims, dims, |x, y| x * y),
        two("div", dims, dims, |x, y| x / y),
        two("maximum", dims, dims, |x, y| x.maximum(y)),
        two("minimum", dims, dims, |x, y| x.minimum(y)),
        many("pow", &[(dims, Positive), (dims, Signed)], |x| {
            x[0].pow(&x[1])
        }),
        one("mul of itself", dims, |x| x * x),
        two("broadcast_add", dims, row, Tensor::broadcast_add),
        two("broadcast_sub", dims, row, Tensor::broadcast_sub),
        two("broadcast_mul", dims, row, Tensor::broadcast_mul),
        two("broadcast_div", dims, row, Tensor::broadcast_div),
        two("broadcast_maximum", dims, row, Tensor::broadcast_maximum),
        two("broadcast_minimum", dims, row, Tensor::broadcast_minimum),
        many("broadcast_pow", &[(dims, Positive), (dims, Signed)], |x| {
            x[0].broadcast_pow(&x[1])
        }),
        two(
            "broadcast_mul of both",
            &[3, 1],
            &[1, 4],
            Tensor::broadcast_mul,
        ),
        two("where_cond", dims, dims, |x, y| thirds(x)?.where_cond(x, y)),
    ]
}

fn reductions() -> Vec<Operation> {
    let dims = &[3, 4, 2];
    vec![
        one("sum 1", dims, |x| x.sum(1)),
        one("sum 0 2", dims, |x| x.sum((0, 2))),
        one("sum_keepdim 0", dims, |x| x.sum_keepdim(0)),
        one("sum_all", dims, Tensor::sum_all),
        one("mean 2", dims, |x| x.mean(2)),
        one("mean_keepdim 0", dims, |x| x.mean_keepdim(0)),
        one("mean_all", dims, Tensor::mean_all),
        one("var 1", dims, |x| x.var(1)),
        one("var_keepdim 2", dims, |x| x.var_keepdim(2)),
        one("max 1", dims, |x| x.max(1)),
        one("max_keepdim 2", dims, |x| x.max_keepdim(2)),
        one("min 1", dims, |x| x.min(1)),
        one("min_keepdim 2", dims, |x| x.min_keepdim(2)),
        // In the layout `broadcast` the largest is there three times.
        one("max_all", dims, Tensor::max_all),
        one("min_all", dims, Tensor::min_all),
        one("log_sum_exp 1", dims, |x| x.log_sum_exp(1)),
        one("norm", dims, Tensor::norm),
        one("cumsum 1", dims, |x| x.cumsum(1)),
        one("cumsum 2", dims, |x| x.cumsum(2)),
    ]
}

fn products() -> Vec<Operation> {
    vec![
        two("matmul", &[3, 4], &[4, 2], Tensor::matmul),
        two("matmul of batches", &[2, 3, 4], &[2, 4, 2], Tensor::matmul),
        two(
            "broadcast_matmul",
            &[2, 3, 4],
            &[4, 2],
            Tensor::broadcast_matmul,
        ),
        two("dot", &[5], &[5], Tensor::dot),
        two("mv", &[3, 4], &[4], Tensor::mv),
    ]
}

fn convolutions() -> Vec<Operation> {
    let mut all = vec![];
    // batch, length, kernel, padding, stride, dilation, groups
    for [batch, length, kernel, padding, stride, dilation, groups] in [
        [1, 7, 3, 0, 1, 1, 1],
        [2, 7, 3, 0, 1, 1, 1],
        [2, 7, 3, 1, 1, 1, 1],
        [2, 8, 3, 1, 2, 1, 1],
        [2, 8, 3, 2, 1, 2, 1],
        [2, 7, 3, 1, 1, 1, 2],
        [2, 5, 1, 0, 1, 1, 1],
    ] {
        let name = format!(
            "conv1d batch {batch} length {length} kernel {kernel} padding {padding} stride {stride} dilation {dilation} groups {groups}"
        );
        let weight = [2 * groups, 2, kernel];
        let mut conv1d = two(
            name,
            &[batch, 2 * groups, length],
            &weight,
            move |x, weight| x.conv1d(weight, padding, stride, dilation, groups),
        );
        // candle would read beyond the end of the kernel's memory.
        conv1d.operands[1].broadcasts = false;
        all.push(conv1d);
    }
    // height, width, kernel's height and width, padding, stride, dilation, groups
    for [height, width, high, wide, padding, stride, dilation, groups] in [
        [4, 4, 3, 3, 0, 1, 1, 1],
        [4, 4, 3, 3, 1, 1, 1, 1],
        [5, 5, 3, 3, 1, 2, 1, 1],
        [4, 4, 3, 3, 1, 2, 1, 1],
        [5, 4, 3, 3, 1, 2, 1, 1],
        [5, 5, 2, 2, 2, 1, 2, 1],
        [4, 4, 3, 3, 1, 1, 1, 2],
        [3, 4, 2, 3, 0, 1, 1, 1],
        [3, 3, 1, 1, 0, 1, 1, 1],
    ] {
        let name = format!(
            "conv2d {height}x{width} kernel {high}x{wide} padding {padding} stride {stride} dilation {dilation} groups {groups}"
        );
        let weight = [2 * groups, 2, high, wide];
        all.push(two(
            name,
            &[2, 2 * groups, height, width],
            &weight,
            move |x, weight| x.conv2d(weight, padding, stride, dilation, groups),
        ));
    }
    // padding, output padding, stride, dilation, groups
    for [padding, output, stride, dilation, groups] in
        [[0, 0, 1, 1, 1], [1, 1, 2, 1, 1], [0, 0, 1, 1, 2]]
    {
        let name = format!(
            "conv_transpose1d padding {padding} output {output} stride {stride} dilation {dilation} groups {groups}"
        );
        all.push(two(
            name,
            &[2, 2, 4],
            &[2, 2 / groups, 3],
            move |x, weight| x.conv_transpose1d(weight, padding, output, stride, dilation, groups),
        ));
    }
    for [padding, output, stride, dilation] in [
        [0, 0, 1, 1],
        [1, 0, 1, 1],
        [1, 0, 2, 1],
        [1, 1, 2, 1],
        [0, 0, 1, 2],
    ] {
        let name = format!(
            "conv_transpose2d padding {padding} output {output} stride {stride} dilation {dilation}"
        );
        all.push(two(name, &[2, 2, 3, 3], &[2, 2, 2, 2], move |x, weight| {
            x.conv_transpose2d(weight, padding, output, stride, dilation)
        }));
    }
    all
}

fn images() -> Vec<Operation> {
    let image = |name: &str, height, width, apply: fn(&Tensor) -> Result<Tensor>| {
        one(name, &[2, 2, height, width], apply)
    };
    vec![
        image("avg_pool2d 2", 4, 4, |x| x.avg_pool2d(2)),
        image("avg_pool2d 2x1", 4, 3, |x| x.avg_pool2d((2, 1))),
        image("avg_pool2d 2 of odd sizes", 5, 5, |x| x.avg_pool2d(2)),
        image("avg_pool2d_with_stride 3 2", 5, 5, |x| {
            x.avg_pool2d_with_stride(3, 2)
        }),
        image("max_pool2d 2", 4, 4, |x| x.max_pool2d(2)),
        image("max_pool2d 2x1", 4, 3, |x| x.max_pool2d((2, 1))),
        image("max_pool2d 2 of odd sizes", 5, 5, |x| x.max_pool2d(2)),
        image("max_pool2d_with_stride 3 2", 5, 5, |x| {
            x.max_pool2d_with_stride(3, 2)
        }),
        one("upsample_nearest1d 4 to 8", &[2, 2, 4], |x| {
            x.upsample_nearest1d(8)
        }),
        one("upsample_nearest1d 4 to 7", &[2, 2, 4], |x| {
            x.upsample_nearest1d(7)
        }),
        one("upsample_nearest1d 4 to 3", &[2, 2, 4], |x| {
            x.upsample_nearest1d(3)
        }),
        image("upsample_nearest2d 3x3 to 6x6", 3, 3, |x| {
            x.upsample_nearest2d(6, 6)
        }),
        image("upsample_nearest2d 2x3 to 4x3", 2, 3, |x| {
            x.upsample_nearest2d(4, 3)
        }),
        image("upsample_nearest2d 3x3 to 5x5", 3, 3, |x| {
            x.upsample_nearest2d(5, 5)
        }),
        image("upsample_bilinear2d 2x3 to 4x5", 2, 3, |x| {
            x.upsample_bilinear2d(4, 5, false)
        }),
        image("upsample_bilinear2d 2x3 to 4x5 by corners", 2, 3, |x| {
            x.upsample_bilinear2d(4, 5, true)
        }),
        image("upsample_bilinear2d_with_scale 2 1.5", 2, 2, |x| {
            x.upsample_bilinear2d_with_scale(2., 1.5, false)
        }),
    ]
}

fn indexed() -> Vec<Operation> {
    vec![
        one("gather 0", &[4, 3], |x| {
            x.gather(&indices(&[0, 1, 1, 3, 0, 2], &[2, 3], x)?, 0)
        }),
        one("gather 1", &[3, 4], |x| {
            x.gather(&indices(&[0, 1, 1, 3, 2, 2], &[3, 2], x)?, 1)
        }),
        two("scatter 1", &[3, 4], &[3, 2], |x, y| {
            x.scatter(&indices(&[0, 1, 1, 3, 2, 0], &[3, 2], x)?, y, 1)
        }),
        two("scatter_add 1", &[3, 4], &[3, 2], |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 1, 2, 0], &[3, 2], x)?, y, 1)
        }),
        two("scatter_add 0", &[4, 3], &[2, 3], |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 3, 1, 2], &[2, 3], x)?, y, 0)
        }),
        two("scatter_add of the same size", &[2, 3], &[2, 3], |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 0, 0, 1], &[2, 3], x)?, y, 0)
        }),
        two("slice_scatter 1", &[3, 4], &[3, 2], |x, y| {
            x.slice_scatter(y, 1, 1)
        }),
        two("slice_scatter0", &[4, 3], &[2, 3], |x, y| {
            x.slice_scatter0(y, 1)
        }),
        two("slice_assign", &[3, 4], &[2, 2], |x, y| {
            x.slice_assign(&[1..3, 0..2], y)
        }),
        two("index_add 0", &[4, 3], &[3, 3], |x, y| {
            x.index_add(&indices(&[1, 1, 3], &[3], x)?, y, 0)
        }),
        two("index_add 1", &[3, 4], &[3, 2], |x, y| {
            x.index_add(&indices(&[1, 3], &[2], x)?, y, 1)
        }),
        one("index_select 0", &[4, 3], |x| {
            x.index_select(&indices(&[1, 1, 3], &[3], x)?, 0)
        }),
        one("index_select 1", &[3, 4], |x| {
            x.index_select(&indices(&[2, 0, 2], &[3], x)?, 1)
        }),
        one("embedding", &[4, 3], |x| {
            x.embedding(&indices(&[2, 2, 0], &[3], x)?)
        }),
        one("sort_last_dim", &[3, 4], |x| {
            Ok(x.contiguous()?.sort_last_dim(true)?.0)
        }),
        one("flip", &[3, 4], |x| x.flip(&[0, 1])),
    ]
}

fn shapes() -> Vec<Operation> {
    let dims = &[3, 4];
    let cube = &[2, 3, 4];
    vec![
        two("cat 0", dims, &[2, 4], |x, y| Tensor::cat(&[x, y], 0)),
        two("cat 1", dims, &[3, 2], |x, y| Tensor::cat(&[x, y], 1)),
        one("cat of itself", dims, |x| Tensor::cat(&[x, x], 1)),
        two("stack 1", dims, dims, |x, y| Tensor::stack(&[x, y], 1)),
        one("narrow 0", dims, |x| x.narrow(0, 1, 1)),
        one("narrow 1", dims, |x| x.narrow(1, 1, 2)),
        one("chunk 1", dims, |x| {
            let chunks = x.chunk(2, 1)?;
            &chunks[0] * &chunks[1]
        }),
        one("pad_with_zeros 1", dims, |x| x.pad_with_zeros(1, 1, 2)),
        one("pad_with_same 1", dims, |x| x.pad_with_same(1, 1, 2)),
        one("pad_with_same 0", dims, |x| x.pad_with_same(0, 0, 2)),
        one("permute", cube, |x| x.permute((1, 2, 0))),
        one("transpose", cube, |x| x.transpose(0, 2)),
        one("t", dims, Tensor::t),
        one("reshape", cube, |x| x.reshape((4, 6))),
        one("flatten_all", cube, Tensor::flatten_all),
        one("flatten_from 1", cube, |x| x.flatten_from(1)),
        one("squeeze", &[3, 1, 4], |x| x.squeeze(1)),
        one("unsqueeze", dims, |x| x.unsqueeze(1)),
        one("broadcast_as", &[3, 1], |x| x.broadcast_as((2, 3, 4))),
        one("broadcast_left", dims, |x| x.broadcast_left(2)),
        one("expand", &[3, 1], |x| x.expand((3, 4))),
        one("repeat", dims, |x| x.repeat((2, 3))),
        one("roll", dims, |x| x.roll(1, 1)),
        one("get 1", dims, |x| x.get(1)),
        one("get_on_dim 1", dims, |x| x.get_on_dim(1, 2)),
        two("meshgrid", &[3], &[4], |x, y| {
            let grids = Tensor::meshgrid(&[x, y], true)?;
            &grids[0] * &grids[1]
        }),
        one("unfold 0 2 2", &[4, 3], |x| x.unfold(0, 2, 2)),
        one("unfold 1 2 2", dims, |x| x.unfold(1, 2, 2)),
        one("unfold 1 3 1", dims, |x| x.unfold(1, 3, 1)),
    ]
}
