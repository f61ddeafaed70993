// The objects that modules hand to each other, as types. Nothing runs here; TypeScript checks them (python tasks.py check).
// oxlint-disable-next-line unicorn/require-module-specifiers -- what makes this file a module, of which types are imported
export {};

// ---------------------------------------------------------------- the graph

/**
 * A node of ComfyUI's graph. Only members that are read here are named: no types fit all supported frontends.
 * @typedef {{
 *   id: number | string, comfyClass?: string, title: string, graph: any, inputs: any[], widgets: Widget[],
 *   size: [number, number],
 * } & Record<string, any>} GraphNode
 */

/** @typedef {{name: string, value: any} & Record<string, any>} Widget */

/**
 * The node and the name of the widget that holds a value, which may be on a subgraph's face.
 * @typedef {(name: string) => [GraphNode, string]} Owner
 */

/**
 * A file as the server names it; a draft will be replaced by another of the same name.
 * @typedef {{filename: string, subfolder: string, type: string, draft?: boolean}} FileName
 */

// ---------------------------------------------------------------- the story

/**
 * How the render goes on with the next prompt.
 * @typedef {object} Switch
 * @property {string} kind
 * @property {number} blend_blocks
 * @property {boolean} re_anchor
 * @property {number | null} recall number of the prompt whose scene comes back; 0: the most alike
 * @property {boolean} new_scene
 */

/**
 * A prompt on blocks.
 * @typedef {object} Segment
 * @property {string} text
 * @property {number} start_block
 * @property {number} end_block the first block after it
 * @property {Switch | null} switch null for the node's
 * @property {string | number | null} seed null for the one before
 * @property {number | null} [asked] the time in the text, which the server writes again while the block is the same
 * @property {string} [words] a hash of its words, by which pictures are found
 * @property {string} [way] a hash of how it follows the prompt before, and of its seed
 */

/**
 * A scene that was copied.
 * @typedef {object} CopiedScene
 * @property {string} text
 * @property {number} blocks its length
 * @property {Switch | null} switch
 * @property {string | number | null} seed
 */

/**
 * The server's answer to a text, see headforcing_core/timeline/editor.py.
 * @typedef {object} Timeline
 * @property {string} text
 * @property {Segment[]} segments
 * @property {string} shared the words that stand before every prompt
 * @property {number} blocks
 * @property {number} seconds
 * @property {number} block_seconds
 * @property {number} first_block_seconds
 * @property {number} fps video frames a second
 * @property {Switch} default
 * @property {number} [beyond] the length of the video in seconds, if the story is longer
 * @property {string} [refusal] why it cannot be rendered, if the story is longer
 * @property {string} [written] the text in the written form, if it is in another one
 * @property {string} [read_as] what it was read as then
 */

/** @typedef {Pick<Timeline, "block_seconds" | "first_block_seconds">} Clock */

/**
 * The widgets of *Prompt Timeline*, as the server's routes take them.
 * @typedef {object} StoryValues
 * @property {string} text
 * @property {number} seconds
 * @property {string} shared_prompt
 * @property {string} switch
 * @property {number} blend_blocks
 * @property {boolean} re_anchor
 * @property {string} model_family
 */

/**
 * What an editor shows that its text may not hold yet.
 * @typedef {object} Unwritten
 * @property {Segment[]} segments
 * @property {string} shared the words that stand before every prompt
 */

/**
 * A change of a story on its way into the text.
 * @typedef {object} Change
 * @property {Segment[]} segments
 * @property {string} shared the words that stand before every prompt
 * @property {string | null} key changes in a row with the same key are one step of undo; null is a step of its own
 * @property {boolean} keepsSeconds whether the video keeps its length
 * @property {string} [refused] why a later change was refused, after which this one is sent again
 */

// ---------------------------------------------------------------- the editor

/**
 * The node of an editor, as the editor sees it.
 * @typedef {object} Host
 * @property {() => StoryValues} read the values of its widgets
 * @property {(name: string) => boolean} linked whether a widget's value comes from another node
 * @property {(values: {prompts?: string, seconds?: number}) => void} write sets widgets
 * @property {(body: object) => Promise<any>} ask the server's answer to a text or to segments, or `{error, offline}`
 * @property {(step: string) => import("./timeline/history.js").History} history what the node's undo goes through, if it
 *   holds the step
 * @property {(isFirst: boolean) => void} run queues the graph, before all others if so
 * @property {() => void} resized hears that the element's height changes
 * @property {(() => void) | undefined} showPanel opens the story panel; undefined if there is none
 */

/**
 * What the bars and the fields of an editor show.
 * @typedef {object} EditorState
 * @property {Timeline} timeline
 * @property {Segment[]} segments
 * @property {number} selected the index of the one whose words are shown
 * @property {import("./timeline/choice.js").Choice} choice
 * @property {boolean} enabled
 */

/**
 * What an editor does for its bars, tools and keys.
 * @typedef {object} Actions
 * @property {(index: number) => void} select
 * @property {(index: number, how: "only" | "keep" | "range" | "toggle") => void} choose see `Choice`
 * @property {(first: number, count: number) => void} span chooses prompts in a row
 * @property {(segments: Segment[], selected: number, count: number) => void} preview shows a drag that goes on
 * @property {(index: number) => void} dropped ends a drag that changes nothing
 * @property {(segments: Segment[], key: string | null, selected: number) => boolean} commit writes changed prompts; false if they are dropped
 * @property {(index: number) => void} locked says that a prompt has begun and stays
 * @property {() => void} open shows the fields of the chosen prompt
 * @property {(seconds: number) => void} seek plays from a second of the story
 * @property {() => void} edit
 * @property {(by: number) => void} step undoes (-1) or redoes (1)
 * @property {(text: string | null) => void} divide
 * @property {() => void} duplicate
 * @property {() => void} remove
 * @property {() => void} share shows the words of every prompt
 * @property {(() => void) | undefined} showPanel
 * @property {(isFirst: boolean) => void} run queues the graph, before all others if so
 * @property {() => void} close hides the fields of the chosen prompt
 */

// ---------------------------------------------------------------- the player

/**
 * What a player plays and how far that is rendered.
 * @typedef {object} Place
 * @property {number} done finished blocks of the story
 * @property {number} lead seconds of the file before the story begins; below 0 if the file begins later
 * @property {boolean} running
 * @property {string} render the id of the render, or the name of the take
 * @property {number} [fps] video frames a second
 * @property {Segment[]} [scenes] the prompts of the story that is rendered, if it tells them
 */

/**
 * What a timeline shows of a player.
 * @typedef {object} Playing
 * @property {number | null} at the second of the story that is played; null: nothing
 * @property {string} [file] the address of a finished file, to look through for pictures
 * @property {HTMLVideoElement} [video] the element that plays
 * @property {Map<number, HTMLCanvasElement> | null} [made] the pictures of the server, by second of the file; null: none
 */

/** @typedef {Place & Playing} ShownPlace */

/** A sentence of the server: its text and the values, which may be sentences. @typedef {string | any[]} Said */

/**
 * What the server tells the player of a node, see nodes/host/browser/player.py.
 * @typedef {object} Message
 * @property {string} node
 * @property {string} workflow
 * @property {string} prompt_id
 * @property {"running" | "stopped" | "failed" | "done"} state
 * @property {string} text
 * @property {Said} [said] the text, to be translated
 * @property {number} [time] when it was told; outputs that ComfyUI had come without a time
 * @property {boolean} [raised] whether ComfyUI shows the error itself
 * @property {string} [preview] the address of a picture
 * @property {GrowingVideo | null} [video] the file that grows
 * @property {Partial<Place> | null} [place]
 * @property {Segment[] | null} [scenes] of the story
 * @property {number} [since] when they have changed last
 * @property {FileName[]} [files] the finished ones
 */

/** An event of ComfyUI's server. @typedef {{detail: any}} ServerEvent */

/**
 * A file that is still written; `followed`: it is read frame by frame.
 * @typedef {{id: string, bytes: number, pictures?: number, sound?: boolean, followed?: boolean}} GrowingVideo
 */

/**
 * A stored video as the server lists it, see nodes/host/browser/runs.py.
 * @typedef {object} Take
 * @property {string} value of the widget *run*
 * @property {string} name of its run
 * @property {number} take its number among those of the run
 * @property {string} date
 * @property {string} length
 * @property {string} size
 * @property {string} story its first words
 * @property {string} story_key a hash of its prompts, which takes with other seeds share
 * @property {number} pictures
 * @property {string} title
 * @property {boolean} starred
 * @property {FileName | null} file
 * @property {number} bytes
 * @property {number} own_bytes that no other take shares
 * @property {number} finished blocks
 * @property {number} lead seconds of its video before the story
 * @property {number} fps video frames a second
 * @property {string} workflow
 * @property {Record<string, unknown> | null} [written] the values of *Prompt Timeline*, see `fetchStory`
 * @property {number | null} seed
 * @property {boolean} draft
 * @property {Said} [differs] what is other in its story than in that of the take before it
 * @property {number} [scene] the number of the first scene that differs, from 1
 */

/**
 * The story of the render that runs, see nodes/host/browser/live_story.py.
 * @typedef {object} ToldStory
 * @property {string} prompt_id
 * @property {string} node_id of its *Prompt Timeline*
 * @property {string} workflow
 * @property {boolean} running
 * @property {Record<string, unknown>} story the values that the render has
 * @property {string} changed_by the client that changed it last; empty before
 */

/**
 * What the server tells of a live video, see nodes/host/browser/performed.py; empty before it begins.
 * @typedef {object} LiveFacts
 * @property {number} [fps] video frames a second that are played
 * @property {number | null} [made] those that are made
 * @property {boolean} [ends] whether its end is fixed
 * @property {string} [end] the time of its end
 * @property {string} [why] why it ends by itself
 * @property {number[]} [kept] the scenes that can come back, by the number of a prompt, the last one first
 */

/**
 * The part of a story to render, or a draft of it; `live`: it goes on without a fixed end.
 * @typedef {{from_seconds?: number, until_seconds?: number, draft?: boolean, live?: boolean}} Part
 */

// ---------------------------------------------------------------- the story panel

/** A marker on the timeline of the story panel. @typedef {{seconds: number, name: string}} Marker */

/** A regular grid, in seconds. @typedef {{every: number, first: number}} Grid */

/**
 * What the server tells of a sound, see nodes/host/browser/sounds.py.
 * @typedef {object} Heard
 * @property {number} seconds
 * @property {Uint8Array} peaks
 * @property {number} peaks_a_second
 * @property {number[]} onsets in seconds
 * @property {number | null} tempo
 * @property {number | null} first_beat
 */

/**
 * A picture of *Scene References*, which a prompt shows if its words name it.
 * @typedef {{name: string, file: FileName | null}} Reference
 */

/** An entry of a menu: its label, what it does, and why it cannot; null: a line. @typedef {[string, () => unknown, string?] | null} Entry */

/** Shows a sentence, which may be that of an error. @typedef {(sentence: string, isError?: boolean) => void} Say */
