"""The prompts and notes of the shipped workflows."""

from workflow_sources import FRAMEWISE_MODEL, LONGLIVE2_MODEL, MODELS, WAN22_VAE, models_of

COMPARE_PROMPTS = """0:00 a red ball bouncing in the navy checkerboard room
0:05 a red ball bouncing in the sand plain room
0:10 a red ball bouncing in the maroon striped room
0:15 a red ball bouncing in the navy checkerboard room"""

TAKES = """0:00 a red ball bouncing in the navy checkerboard room
0:10 a yellow star gliding in the sand plain room
0:20 a cyan cross circling in the maroon striped room
0:30 [seed 7] a pink square bouncing in the olive plain room
0:40 a red ball bouncing in the navy checkerboard room
0:50 a yellow star gliding in the sand plain room"""

FOX = (
    "A red fox with a thick winter coat trots through a silent snowy forest at dawn, low golden light between the "
    "pines, breath steaming in the cold air, slow tracking shot, cinematic, highly detailed"
)
LIGHTHOUSE = """0:00 An old lighthouse keeper in a yellow raincoat climbs a spiral staircase, lantern in hand, cinematic
0:10 The lighthouse keeper in a yellow raincoat opens a door and steps onto a balcony above a stormy sea
0:20 The lighthouse keeper in a yellow raincoat looks through a brass telescope at the dark horizon
0:30 A small sailing ship with white sails struggles through huge waves, seen from the lighthouse balcony
0:40 The lighthouse keeper in a yellow raincoat pulls a lever and the great lamp sweeps light across the sea
0:50 Dawn breaks, the sea is calm, the lighthouse keeper in a yellow raincoat smiles and lowers his telescope"""

VALLEY = """0:00 A wide alpine valley before sunrise, mist over a winding river, slow aerial shot, cinematic
0:40 The sun rises over the alpine valley, golden light on the river and the meadows, slow aerial shot, cinematic
1:20 A shepherd in a brown coat walks with a flock of sheep across the alpine meadow, low tracking shot, cinematic
2:00 [blend 3] Dark clouds gather over the alpine meadow, wind bends the grass, the shepherd in a brown coat looks up
2:30 [flush, re-anchor] Inside a small wooden hut, a fire burns in a stone hearth, rain on the window, warm light
3:10 The shepherd in a brown coat pours tea by the fire in the small wooden hut, close shot, warm light, cinematic
3:50 [flush, re-anchor] A wide alpine valley after the storm, a rainbow over the winding river, slow aerial shot
4:30 Night falls over the alpine valley, stars above the winding river, one lit window, slow aerial shot, cinematic"""

VIOLIN = """0:00 A violinist in a red coat plays on a wet square at night, neon reflections, slow shot, cinematic
0:08 [reset] The violinist in a red coat stops playing and looks up into the rain, neon reflections, cinematic
0:12 Close shot of hands that lay a violin into its case, rain drops on the wood, neon light, cinematic
0:20 A tram with lit windows crosses a bridge at night, the violinist in a red coat behind the glass, cinematic"""


def _files(*names: str) -> str:
    models = models_of(set(names)).values()
    lines = [f"- [{model['name']}]({model['url']})\n  in *models/{model['directory']}*" for model in models]
    return "**Files** (ComfyUI offers to download what is missing)\n\n" + "\n".join(lines)


_MODEL, _TEXT, _VAE, _UPSCALER, _INTERPOLATOR = (model["name"] for model in MODELS.values())
FILES = _files(_MODEL, _TEXT, _VAE)
FRAMEWISE_FILES = _files(FRAMEWISE_MODEL["name"], _TEXT, _VAE)
LONGLIVE2_FILES = _files(LONGLIVE2_MODEL["name"], _TEXT, WAN22_VAE["name"])
LICENCE = """The licence of LongLive 2.0's weights could not be read at its source: read it on the model's page before
you use them. Nobody here has seen a picture made with them."""
PAGE = "docs"  # of the repository

DEMO_NOTE = f"""## Head Forcing demo

Nothing to download: press **Run**. A one-minute video of six prompts grows on *Head Forcing Sampler*. Three rooms are
shown, and each comes back after half a minute. What hangs in a room no prompt says: the model has to remember it. The
method *head_forcing_scenes* gives it frames of the first visit; with *head_forcing* rooms are drawn anew.

The tiny model knows one world:

*a* **red**, green, blue, yellow, orange, purple, cyan, pink

**ball**, square, triangle, star, cross

**bouncing**, gliding, circling *in the*

**navy**, grey, teal, maroon, olive, slate, brown, sand

**checkerboard**, plain, striped *room*

*and, if the camera is to move:* panning left, panning right

It runs through the same engine as the real models and says nothing about the quality of their pictures.

Using the graph: {PAGE}/using_the_graph.md"""

SINGLE_NOTE = f"""## One prompt, one minute

{FILES}

The KV cache takes 2.7 GB at 832x480 however long the video is. Change *seconds* for any other length.

Long renders: {PAGE}/long_renders.md"""

SIX_NOTE = f"""## Six prompts, one minute

{FILES}

Each line of *prompts* starts at its time; prompts change at the nearest block (every 0.75 s). Name the subject
in every prompt, or put it into *shared_prompt*.

Prompts over time: {PAGE}/using_the_graph.md"""

PROFILE_NOTE = f"""## Which head looks at what

Press **Run**: the demo model is measured, compared with the profile that comes with the pack, and used to make
a video.

For your own model replace *Load Demo Model* by *Load Self Forcing* and *Load CLIP*, and set the size to 832 x
480. *quick* is enough to start; *full* is what the paper does. The profile is saved in *models/head_profiles*.

Head profiles: {PAGE}/head_profiles.md"""

COMPARE_NOTE = f"""## Methods side by side

Press **Run**: the same story and the same noise go through three methods, and a table says what each keeps, how
long a block takes and how its video drifts. The first room comes back after ten seconds: compare what hangs in it.

The names that *methods* takes are those of *method* on Head Forcing Sampler. The demo model is a toy; for real
weights replace *Load Demo Model* by *Load Self Forcing*, *Load CLIP* and *Load VAE*, and set the size to 832 x
480. What was finished when a comparison is stopped is kept.

Methods: {PAGE}/methods.md"""

EXTEND_NOTE = f"""## Go on from a video

{FILES}

Put any video into *Load Video*, of any size and frame rate. Its last four seconds become context, the first of
their frames the anchors, and the prompt drives the 15 new seconds. The result holds both. *Video Slice* between
the two nodes takes another part.

Going on from a video: {PAGE}/using_the_graph.md"""

IMAGE_NOTE = f"""## Ten seconds from an image

{FRAMEWISE_FILES}

Put any image into *Load Image*: it is cropped around the middle to *width* and *height*, and is the first frame.
The prompt says what happens in it. Only framewise models begin with an image; *model_family* of the sampler says
that this is one. Weights of Causal Forcing++ take its *2_steps* or *1_step*.

Going on from an image: {PAGE}/using_the_graph.md"""

FIVE_NOTE = f"""## Five minutes, decoded while they are made

{FILES}

With a *vae* on the sampler the video grows on disk and is shown on the sampler. Memory stays that of a short
video. Stop it, or lose power, and press **Run** again: it goes on where it stopped.

The tag **[flush, re-anchor]** in front of a prompt makes a scene cut.

Long renders: {PAGE}/long_renders.md"""

TAKES_NOTE = f"""## Re-roll one scene

Press **Run**. Scene 4 has the tag **[seed 7]**: from there on the noise is another one. Change the number and
press **Run** again: scenes 1 to 3 are taken from disk, scene 4 and what follows are made again.

Earlier takes stay: **takes** above the video lists them, to play one, another beside it, or to put its story and seed
back. Choose a bar and press **this scene** to render scene 4 alone.

The demo model needs no download; with real weights it works the same.

Long renders: {PAGE}/long_renders.md"""

FINISH_NOTE = f"""## Larger, with more frames a second

{_files(_UPSCALER, _INTERPOLATOR)}

Put a video of any length into *Load Video*, or connect the video of *Head Forcing Sampler*, and press **Run**. *Finish
Video* doubles its frames and enlarges them by four, a few at a time, so memory does not grow with length. What is
stopped goes on with the next **Run**. Any upscale model will do, and RIFE or FILM; mute the loader of the one that you
do not want. The sound stays; *audio* takes another.

Needs ComfyUI 0.30 or newer for more frames."""

LIVE_NOTE = f"""## Change the story while it renders

{FILES}

Press **Run**, then edit a prompt that has not begun and press **apply from the next block** on *Prompt
Timeline*. Parts of the video that are finished stay as they are. The report and the workflow in the saved file
hold the story as it was rendered, so the file dropped on the canvas makes the same video again."""

TWO_GPUS_NOTE = f"""## VAE on the second GPU

{FILES}

*Select VAE Device* puts the VAE on the second GPU. With *decode_in_background* it decodes one block while the
next is sampled. The result does not change. On a machine with one GPU the node passes the VAE on, and the graph
runs as usual.

Needs ComfyUI 0.30 or newer."""

LONGLIVE2_NOTE = f"""## Shots at 1280x704, 24 frames a second

{LONGLIVE2_FILES}

{LICENCE}

A prompt without a tag begins a shot; **[reset]** before it goes on with the same one. Blocks last 1.33 s, which
*model_family* of Prompt Timeline shows. For a smaller card set 832 x 480 on the sampler.

LongLive 2.0: {PAGE}/longlive2.md"""

LONGLIVE2_IMAGE_NOTE = f"""## LongLive 2.0 from an image

{LONGLIVE2_FILES}

{LICENCE}

Put any image into *Load Image*: it is cropped around the middle to *width* and *height*, and is the first frame. The
authors say that these weights saw no such training and that quality may be lower.

LongLive 2.0: {PAGE}/longlive2.md"""

NATIVE_NOTE = f"""## Head Forcing with native sampling nodes

{FILES}

*Apply Head Forcing* gives a MODEL and a SAMPLER for *SamplerCustomAdvanced*. With the same seed the latents are
those of *Head Forcing Sampler*, which does the same in one node and adds run folders, resuming and a growing
video."""

APP_NOTE = f"""## One minute of video as an app

{FILES}

This workflow opens in app mode: prompts, length, seed and the finished video, without the graph. *Graph* in the
menu above shows what is behind it."""
