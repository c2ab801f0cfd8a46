import pytest
import torch
from torch import Tensor
from torch.nn import functional

from clients.models.cnn import Cnn
from clients.models.image_input import channels_last
from clients.models.resnet import ResNet18
from fedsim.contracts import Batch, DataSpec

CIFAR = DataSpec("rows", (3, 32, 32), 10)


def images(b: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Batch:
    x = torch.randn(b, *shape, dtype=dtype, generator=torch.Generator().manual_seed(b))
    return Batch(x, torch.zeros(b, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 15), (4, 64, 40)])
def test_cnn_takes_images_of_any_size_from_8_pixels(shape: tuple[int, int, int]) -> None:
    model = Cnn(channels=(4, 6), hidden=5).build(DataSpec("rows", shape, 7))
    assert model(images(3, shape)).shape == (3, 7)


@pytest.mark.parametrize(
    ("table", "parameters"),
    [
        # 5x5x3x32+32, 5x5x32x64+64, 64x8x8x512+512, 512x10+10: the network of McMahan et al. on 32x32
        (Cnn(channels=(32, 64), kernel=5, hidden=512), 2_432 + 51_264 + 2_097_664 + 5_130),
        (Cnn(channels=(16, 32), kernel=3, hidden=128), 448 + 4_640 + 262_272 + 1_290),
    ],
)
def test_cnn_has_the_parameters_that_its_layers_add_up_to(table: Cnn, parameters: int) -> None:
    assert sum(value.numel() for value in table.build(CIFAR).parameters()) == parameters


def test_the_default_cnn_is_small() -> None:
    assert 100_000 < sum(value.numel() for value in Cnn().build(CIFAR).parameters()) < 1_600_000


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Same-size convolution as a sum over the kernel's places."""
    reach, (height, width) = weight.shape[-1] // 2, x.shape[-2:]
    padded = functional.pad(x, (reach,) * 4)
    out = bias.view(1, -1, 1, 1).expand(len(x), -1, height, width).clone()
    for i in range(weight.shape[-1]):
        for j in range(weight.shape[-1]):
            out += torch.einsum(
                "oc,bchw->bohw", weight[:, :, i, j], padded[:, :, i : i + height, j : j + width]
            )
    return out


def test_cnn_is_two_convolutions_with_pooling_and_a_dense_layer() -> None:
    shape = (2, 9, 12)
    model = Cnn(channels=(3, 4), kernel=5, hidden=6).build(DataSpec("rows", shape, 3)).double()
    batch, w = images(4, shape, torch.float64), dict(model.named_parameters())
    maps = convolve(batch.x, w["conv1.weight"], w["conv1.bias"]).relu()[..., :8, :12]
    maps = maps.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(-1, -2))
    maps = convolve(maps, w["conv2.weight"], w["conv2.bias"]).relu()
    maps = maps.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(-1, -2))
    hidden = (maps.reshape(4, -1) @ w["dense.weight"].T + w["dense.bias"]).relu()
    torch.testing.assert_close(
        model(batch), hidden @ w["head.weight"].T + w["head.bias"], rtol=1e-12, atol=1e-12
    )


def test_resnet18_with_batchnorm_has_the_published_parameter_count() -> None:
    model = ResNet18(norm="batch").build(CIFAR)
    assert sum(value.numel() for value in model.parameters()) == 11_173_962
    assert [name for name, _ in model.named_buffers()][:3] == [
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert len(list(model.buffers())) == 20 * 3


def test_resnet18_with_groupnorm_has_the_same_parameters_and_no_buffers() -> None:
    model = ResNet18().build(CIFAR)
    assert sum(value.numel() for value in model.parameters()) == 11_173_962
    assert not list(model.buffers())


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 28, 28)])
def test_resnet_gives_logits_for_every_image(norm: str, shape: tuple[int, int, int]) -> None:
    model = ResNet18(norm=norm, width=4).build(DataSpec("rows", shape, 5))  # type: ignore[arg-type]
    assert model(images(2, shape)).shape == (2, 5)


def test_resnet_halves_its_maps_three_times_and_doubles_its_channels() -> None:
    model = ResNet18(width=4).build(CIFAR)
    maps, shapes = model.norm(model.conv(images(1, (3, 32, 32)).x)), []
    for stage in model.stages:
        maps = stage(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


def test_a_block_adds_its_input_to_two_normalised_convolutions() -> None:
    block = ResNet18(width=4).build(CIFAR).stages[0][0].double()
    w, x = dict(block.named_parameters()), images(2, (4, 6, 6), torch.float64).x

    def normalised(maps: Tensor) -> Tensor:
        """Wu and He 2018: zero mean, unit variance over each half of the channels of each image."""
        halves = maps.reshape(2, 2, -1)
        centred = halves - halves.mean(dim=2, keepdim=True)
        return (centred / (centred.square().mean(dim=2, keepdim=True) + 1e-5).sqrt()).reshape(maps.shape)

    inner = normalised(convolve(x, w["conv1.weight"], torch.zeros(4).double())).relu()
    expected = (normalised(convolve(inner, w["conv2.weight"], torch.zeros(4).double())) + x).relu()
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


def test_batchnorm_statistics_move_in_the_given_buffers_and_not_in_the_template() -> None:
    model = ResNet18(norm="batch", width=4).build(CIFAR)
    given = {name: value.clone() for name, value in model.state_dict().items()}
    torch.func.functional_call(model, given, (images(4, (3, 32, 32)),))
    assert given["norm.num_batches_tracked"].item() == 1
    assert given["norm.num_batches_tracked"].dtype == torch.int64
    assert given["norm.running_mean"].any()
    assert model.norm.num_batches_tracked.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("table", [Cnn(channels=(4, 6), hidden=8), ResNet18(width=4)])
def test_stacked_clients_give_what_each_gives_alone(table: Cnn | ResNet18, dtype: torch.dtype) -> None:
    model = table.build(CIFAR).to(dtype)
    stacks = {name: torch.stack([value, value * 1.1]).detach() for name, value in model.named_parameters()}
    x = images(6, (3, 32, 32), dtype).x.view(2, 3, 3, 32, 32)
    y = torch.zeros(3, dtype=torch.int64)

    def call(tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(model, tensors, (Batch(inputs, y),))
        return logits

    together = torch.func.vmap(call)(stacks, x)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-12
    for client in range(2):
        alone = call({name: stack[client] for name, stack in stacks.items()}, x[client])
        torch.testing.assert_close(together[client], alone, rtol=tolerance, atol=tolerance)


def test_channels_last_changes_the_memory_and_not_the_values() -> None:
    x = images(2, (3, 5, 4)).x
    assert torch.equal(channels_last(x), x)
    assert channels_last(x).is_contiguous(memory_format=torch.channels_last)
